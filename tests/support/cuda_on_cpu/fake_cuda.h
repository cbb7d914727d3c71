// SPDX-License-Identifier: Apache-2.0
// A GPU that is not there: streams are queues of closures, and what a program enqueued runs only
// when it waits for something.
//
// Then tasks run one after the other on the waiting thread, in a random order that keeps the order
// within streams and the events between them and nothing else. An order that a program forgot to
// ask for shows as a wrong number, again and again for the same seed, and no two threads ever
// race: one lock guards everything. Device memory is host memory that begins as NaNs.
//
// Several GPUs differ as they do in CUDA: memory, streams, events and handles of cuBLASLt belong to
// the one that was the thread's current when they were made, and a launch, a record or a product
// with those of another one is refused.
//
// Every call is logged, so tests can compare what was issued with what should have been; and any
// call can be made to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/support/cuda_on_cpu/emulation.h"
#include "tests/support/cuda_on_cpu/runtime_api.h"

namespace cuda_on_cpu {

enum class CallKind {
  kQuery,   // asks or sets something, enqueues nothing
  kMalloc,  // device memory
  kFree,
  kHostAlloc,  // pinned memory
  kHostFree,
  kCreate,  // streams and events
  kDestroy,
  kKernel,  // also the products of cuBLASLt
  kCopy,
  kSet,
  kHostFunction,
  kRecord,
  kWait,
  kSynchronize  // the host waits, also where a copy makes it wait
};

struct Call {
  CallKind kind = CallKind::kQuery;
  std::string name;                    // of the kernel, or of the function
  int stream = -1;                     // by order of creation; 0 is the default stream
  int gpu = 0;                         // the calling thread's current one
  int stream_gpu = -1;                 // whose stream it is
  int event = -1;                      // by order of creation
  int priority = 0;                    // of a stream that is created
  int algorithm = 0;                   // of a product
  dim3 grid{0, 0, 0}, block{0, 0, 0};  // of a product: grid.x multiprocessors, 0: all
  std::size_t bytes = 0;               // of memory, or shared memory of a kernel
  const void* to = nullptr;
  const void* from = nullptr;
};

struct FakeMachine {
  std::uint64_t seed = 0;
  int devices = 1;
  int driver_version = 13000;
  int runtime_version = 13000;
  cudaError_t device_count_error = cudaSuccess;
  std::size_t memory_bytes = std::size_t{1} << 30;  // of each device
  int compute_major = 9;
  int compute_minor = 0;
  bool peers = true;  // devices can read each other's memory
  /// What the algorithms of products take by the clock of events, beside a task's time.
  std::vector<std::int64_t> product_ns{};
};

/// Forgets everything: streams, events, memory, log, failures. Nothing may be in use.
void reset(const FakeMachine& machine = {});

/// The calls since the last reset or clear_log.
std::vector<Call> call_log();
void clear_log();

/// Calls so far that can fail.
std::int64_t failable_calls();
/// Makes the n-th failable call from now on (0: the next) return `error` and do nothing.
void fail_call(std::int64_t n, cudaError_t error = cudaErrorUnknown);
/// Makes the n-th task from now on fail while it runs, as an illegal address does: nothing runs any
/// more and all later calls say so.
void fail_task(std::int64_t n, cudaError_t error = cudaErrorIllegalAddress);

/// Bytes in use on all devices, and tasks that were enqueued and not run yet.
std::size_t allocated_bytes();
std::size_t pending_tasks();
/// What was created and not destroyed.
std::size_t live_streams();
std::size_t live_events();
std::size_t live_host_allocations();

/// For the launcher of kernels and the fake libraries: enqueues `run`, or returns why not.
cudaError_t enqueue_kernel(cudaStream_t stream, Call call, std::function<void()> run);
/// Puts a call of a fake library into the log.
void log_call(Call call);
/// The calling thread's GPU, and whether its kernels reach the memory: its own, pinned, or a peer's
/// to which access was enabled.
int current_gpu();
/// Within a task: lets time pass.
void pass_time(std::int64_t ns);
/// Within a task: all memory of devices and all that is pinned, ascending.
std::vector<std::span<std::byte>> memory_of_tasks();
std::int64_t product_time_ns(std::size_t algorithm);
/// Products so far of which an operand was all zeros.
std::int64_t products_of_zeros();
bool reaches(int gpu, const void* data);

}  // namespace cuda_on_cpu
