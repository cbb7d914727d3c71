// SPDX-License-Identifier: Apache-2.0
// The CUDA kernel language for g++: a .cu file that includes <cuda_runtime.h> from this folder
// compiles as C++, and its kernels run on the processor.
//
// The threads of a block are fibers of one host thread; blocks run one after the other. A fiber
// runs until it has to wait for others: at __syncthreads, or in an operation of a warp. Checks that
// a GPU does not make, each of which stops the kernel with its name and the block:
//   * __syncthreads that not all threads of the block reach
//   * warp operations that not all lanes of the mask reach, or with different masks or kinds
//   * more threads, shared memory or blocks than a GPU takes
//   * writes behind dynamic shared memory (with AddressSanitizer: also reads)
// Dynamic shared memory holds NaNs when a block begins. With Options::order_seed the fibers run in
// a different order between any two waits, and blocks in a different order, too: a kernel whose
// results change has a race.
//
// Not covered: memory order between blocks that run at the same time, alignment of vector accesses,
// bank conflicts, registers, and anything about speed. Static __shared__ variables keep what the
// block before left in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#define SHARDWRIGHT_CUDA_ON_CPU 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// Set whenever a fiber goes on.
inline constinit thread_local uint3 threadIdx{0, 0, 0};
inline constinit thread_local uint3 blockIdx{0, 0, 0};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;

namespace cuda_on_cpu {

/// A kernel broke a rule; the message names the kernel and the block.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Everything that a launch says. `thread` runs the kernel as one thread.
struct Launch {
  std::string name;
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  std::function<void()> thread;
  /// Of what launch() of kernels/cuda/launch.h enqueues: the kernel's address, and the bytes of its
  /// arguments.
  const void* kernel = nullptr;
  std::vector<std::vector<std::byte>> arguments{};
};

/// Limits of sm_80 to sm_120 that a launch must keep; empty when it does, else what it breaks.
std::string broken_limit(const Launch& launch);

/// Runs all blocks on the calling thread. Throws Failure.
void run(const Launch& launch);

/// Runs the kernels that streams run in the place of run(), which it may call; empty: run().
using Runner = std::function<void(const Launch&)>;
void set_runner(Runner runner);
const Runner& runner();

/// Each argument's bytes.
template <class... T>
std::vector<std::vector<std::byte>> bytes_of(const std::tuple<T...>& arguments) {
  return std::apply(
      [](const auto&... argument) {
        const auto bytes = [](const auto& one) {
          const auto* begin = reinterpret_cast<const std::byte*>(&one);
          return std::vector<std::byte>(begin, begin + sizeof one);
        };
        return std::vector<std::vector<std::byte>>{bytes(argument)...};
      },
      arguments);
}

struct Options {
  /// 0: threads and blocks in ascending order. Else every wait and every launch is followed by
  /// another order, which depends on the seed alone. With odd seeds a warp runs on until it waits
  /// for others.
  std::uint64_t order_seed = 0;
};
/// For kernels that any thread of the host begins to run from now on.
void set_options(const Options& options);
Options options();

/// The beginning of the running block's dynamic shared memory, aligned to 1024 bytes.
void* shared_memory();
/// Its size.
std::size_t shared_bytes();
/// Stops the kernel of the running fiber.
[[noreturn]] void fail(const std::string& what);

/// Waits for all threads of the block; returns how many of them came with `vote`.
int barrier(bool vote);

/// What a warp does together once all lanes of the mask are there: in[l] and out[l] are what lane l
/// came with, null for lanes outside the mask.
using WarpOperation = void (*)(std::uint32_t mask, const void* const* in, void* const* out);
void warp_collective(std::uint32_t mask, WarpOperation operation, const void* in, void* out);
/// Of the running thread.
unsigned lane();

/// cp.async: a copy of 4 or 16 bytes (or zeros, when `from` is null) that happens when it is waited
/// for, or at once when Options::order_seed is odd.
void async_copy(void* to, const void* from, int bytes);
void async_commit();
void async_wait(int groups_left);

}  // namespace cuda_on_cpu

#include "tests/support/cuda_on_cpu/device_functions.h"  // IWYU pragma: export
#include "tests/support/cuda_on_cpu/vector_types.h"      // IWYU pragma: export
#include "tests/support/cuda_on_cpu/warp.h"              // IWYU pragma: export
