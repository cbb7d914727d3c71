// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_on_cpu/fake_cuda.h"

#include <algorithm>
#include <new>
#include <utility>

#include "tests/support/cuda_on_cpu/fake_engine.h"
#include "tests/support/cuda_on_cpu/fake_runtime.h"

namespace cuda_on_cpu {

Engine& engine() {
  static Engine instance;
  return instance;
}

void reset(const FakeMachine& machine) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  e.release_regions();
  e.streams.clear();
  e.events.clear();
  e.default_stream.tasks.clear();
  e.log.clear();
  e.machine = machine;
  e.random = machine.seed;
  e.failable = e.tasks_run = 0;
  e.failing_call = e.failing_task = kNever;
  e.dead = cudaSuccess;
  e.clock_ns = 0;
  e.streams_made = e.events_made = 0;
  e.current = nullptr;
  e.allocated.clear();
  e.peer_access.clear();
  last_error = cudaSuccess;
}

std::vector<Call> call_log() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.log;
}

void log_call(Call call) {
  Engine& e = engine();
  call.gpu = current_gpu();
  const std::lock_guard lock(e.mutex);
  e.log.push_back(std::move(call));
}

void clear_log() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  e.log.clear();
}

std::int64_t failable_calls() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.failable;
}

void fail_call(std::int64_t n, cudaError_t error) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  e.failing_call = e.failable + n;
  e.call_error = error;
}

void fail_task(std::int64_t n, cudaError_t error) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  e.failing_task = e.tasks_run + n;
  e.task_error = error;
}

std::size_t allocated_bytes() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  std::size_t bytes = 0;
  for (const auto& [gpu, of_gpu] : e.allocated) bytes += of_gpu;
  return bytes;
}

int current_gpu() {
  return current_device;
}

bool reaches(int gpu, const void* data) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.reaches(gpu, data);
}

std::vector<std::span<std::byte>> memory_of_tasks() {
  std::vector<std::span<std::byte>> memory;
  for (const auto& [address, region] : engine().regions) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are kept by address
    memory.emplace_back(reinterpret_cast<std::byte*>(address), region.bytes);
  }
  return memory;
}

void pass_time(std::int64_t ns) {
  engine().clock_ns += ns;  // a task runs under the lock
}

std::int64_t product_time_ns(std::size_t algorithm) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return algorithm < e.machine.product_ns.size() ? e.machine.product_ns[algorithm] : 0;
}

std::size_t pending_tasks() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  std::size_t count = 0;
  e.for_each_stream([&](CUstream_st& stream) { count += stream.tasks.size(); });
  return count;
}

std::size_t live_streams() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.streams.size();
}

std::size_t live_events() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.events.size();
}

std::size_t live_host_allocations() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return static_cast<std::size_t>(
      std::count_if(e.regions.begin(), e.regions.end(),
                    [](const auto& region) { return !region.second.device; }));
}

cudaError_t enqueue_kernel(cudaStream_t stream, Call call, std::function<void()> run) {
  call.kind = CallKind::kKernel;
  call.stream = stream == nullptr ? 0 : stream->id;
  call.stream_gpu = gpu_of(stream);
  return api(std::move(call), [&](Engine& e) {
    if (gpu_of(stream) != current_device) return cudaErrorInvalidResourceHandle;
    e.at(stream).tasks.push_back({std::move(run)});
    return cudaSuccess;
  });
}

cudaError_t enqueue(cudaStream_t stream, const Launch& launch) {
  if (!broken_limit(launch).empty()) return cudaErrorInvalidConfiguration;
  Call call;
  call.name = launch.name;
  call.grid = launch.grid;
  call.block = launch.block;
  call.bytes = launch.shared_bytes;
  return enqueue_kernel(stream, std::move(call), [launch] { runner()(launch); });
}

}  // namespace cuda_on_cpu
