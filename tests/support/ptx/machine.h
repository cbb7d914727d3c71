// SPDX-License-Identifier: Apache-2.0
// Runs a kernel of PTX: blocks one after the other, the warps of a block in turn, each as far as it
// gets.
//
// A warp has a program counter for each lane. Of the lanes that can go on, those with the lowest
// one run together, until they wait, part, or meet others; so lanes that parted meet again where
// the code that the compiler wrote does. At an instruction for several lanes each waits until all
// of its mask stand at the same instruction. A kernel is stopped, with its name and the
// instruction, by
//   * lanes or threads that wait for others that never come
//   * an access outside the memory there is, or not aligned to its size
//   * a shuffle from a lane that the mask leaves out
//   * far more instructions than a test takes: a loop without end
//
// Addresses of shared and local memory count from the beginning of the block's and the thread's; as
// generic addresses they lie in windows that no processor's memory reaches. Copies of cp.async
// arrive when they are waited for. Shared memory and registers begin as NaNs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/ptx/module.h"

namespace ptx {

struct Size3 {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct Launch {
  Size3 grid, block;
  std::size_t dynamic_shared_bytes = 0;
  /// One for each parameter.
  std::vector<std::vector<std::byte>> arguments;
  /// What global addresses reach, ascending.
  std::vector<std::span<std::byte>> global;
};

inline constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
inline constexpr std::uint64_t kLocalWindow = std::uint64_t{1} << 61;

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;  // that are read
  std::size_t size = 0;   // that are written; those that are not read become zeros
};

struct Block {
  const Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  Size3 index;
  std::vector<std::byte> parameters, shared, local;
  std::size_t last_region = 0;  // of global memory that was reached
};

struct Warp {
  Block* block = nullptr;
  std::uint32_t number = 0;
  std::uint32_t alive = 0, waiting = 0, at_barrier = 0;  // lanes
  std::uint32_t pc[32] = {};
  std::vector<std::uint64_t> registers;
  std::vector<std::vector<Copy>> copies[32];  // groups, oldest first; the last one is still open

  std::uint64_t* row(std::uint32_t number_of_row) {
    return &registers[32 * std::size_t{number_of_row}];
  }
  /// The memory at an address; fails where there is none or it is not aligned.
  std::byte* reach(Space space, std::uint64_t address, std::size_t bytes, unsigned lane);
  [[noreturn]] void fail(const std::string& what) const;
};

/// Runs all blocks; what was executed is marked in `executed`, one for each instruction. Throws
/// Failure.
void run(const Kernel& kernel, const Launch& launch, std::vector<bool>& executed);

}  // namespace ptx
