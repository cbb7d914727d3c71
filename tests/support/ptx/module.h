// SPDX-License-Identifier: Apache-2.0
// A text of PTX as data: kernels with their parameters, memory and instructions, ready to run.
//
// Every operand is a row of 32 values, one for each lane of a warp: registers, special registers
// such as %tid.x, and constants and addresses of variables, which hold the same in all lanes. So an
// instruction reads and writes rows and knows nothing else. An instruction that no family of
// operations here knows ends the reading with its name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ptx {

/// The text cannot be read, or a kernel broke a rule.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Instruction;
struct Warp;

/// Does the instruction for the lanes of the mask.
using Execute = void (*)(Warp& warp, const Instruction& instruction, std::uint32_t mask);

enum class Kind : std::uint8_t {
  kLanewise,  // each lane on its own
  kBranch,
  kReturn,
  kBarrier,   // of the block
  kTogether,  // lanes of the mask that is the last operand
  kWholeWarp  // all 32 lanes
};

enum class Space : std::uint8_t { kGlobal, kShared, kLocal, kParameters };

struct Instruction {
  Execute execute = nullptr;
  Kind kind = Kind::kLanewise;
  bool guarded = false, guard_negated = false;
  std::uint32_t guard = 0;  // row
  std::array<std::uint32_t, 16> row{};
  std::uint8_t rows = 0;
  /// Rows of the first operand: several of a vector in braces, or of a pair with a bar.
  std::uint8_t first_rows = 0;
  /// Bytes behind the addresses in brackets, by their order.
  std::array<std::int64_t, 2> offset{};
  std::uint32_t target = 0;  // of a branch: an index of the code
  // Of loads and stores:
  Space space = Space::kGlobal;
  std::uint8_t bytes = 0;  // of one element
  bool is_signed = false;
  std::uint32_t opcode = 0;  // index of Kernel::opcodes
};

struct Parameter {
  std::size_t offset = 0, bytes = 0;
};

/// Where special registers and constants lie.
struct FilledRow {
  std::uint32_t row = 0;
  std::uint64_t value = 0;
  std::string special;  // empty: the value, else the register's name
};

struct Kernel {
  std::string name;  // mangled
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;  // static; dynamic shared memory begins behind them
  std::size_t local_bytes = 0;   // of a thread
  std::uint32_t rows = 0;
  std::vector<FilledRow> filled;
  std::vector<Instruction> code;
  std::vector<std::string> opcodes;
};

/// Kernels by mangled name. Throws Failure.
std::map<std::string, Kernel> parse(const std::string& text);

}  // namespace ptx
