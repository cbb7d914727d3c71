// SPDX-License-Identifier: Apache-2.0
// The state of the fake runtime and what its functions share; fake_cuda.h says what it does.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_cpu/fake_cuda.h"

namespace cuda_on_cpu {

struct Task {
  std::function<void()> run;      // empty: a wait
  CUevent_st* awaited = nullptr;  // of a wait
  std::uint64_t awaited_record = 0;
};

}  // namespace cuda_on_cpu

struct CUstream_st {
  int id = 0;
  int gpu = 0;
  std::deque<cuda_on_cpu::Task> tasks;
};

struct CUevent_st {
  int id = 0;
  int gpu = 0;
  bool timed = true;
  std::uint64_t issued = 0;  // records
  std::uint64_t completed = 0;
  std::int64_t time_ns = 0;  // of the last completed record
};

namespace cuda_on_cpu {

inline constexpr std::int64_t kTaskNs = 1000;
inline constexpr std::size_t kDeviceAlignment = 256;
/// A call that fails has this number when none should.
inline constexpr std::int64_t kNever = -1;

struct Region {
  std::size_t bytes = 0;
  bool device = false;
  int gpu = 0;
};

struct Engine {
  std::mutex mutex;
  FakeMachine machine;
  std::uint64_t random = 0;
  std::vector<Call> log;
  std::int64_t failable = 0;
  std::int64_t failing_call = kNever;
  cudaError_t call_error = cudaErrorUnknown;
  std::int64_t tasks_run = 0;
  std::int64_t failing_task = kNever;
  cudaError_t task_error = cudaErrorUnknown;
  cudaError_t dead = cudaSuccess;  // the context's last word
  std::int64_t clock_ns = 0;
  CUstream_st default_stream;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  int streams_made = 0;
  int events_made = 0;
  CUstream_st* current = nullptr;  // that ran last
  std::map<std::uintptr_t, Region> regions;
  std::map<int, std::size_t> allocated;       // by GPU
  std::set<std::pair<int, int>> peer_access;  // whose kernels, whose memory

  /// What a failed device did not free is freed with it.
  ~Engine() { release_regions(); }
  void release_regions() {
    for (const auto& [address, region] : regions) {
      ::operator delete (reinterpret_cast<void*>(address), std::align_val_t{kDeviceAlignment});
    }
    regions.clear();
  }

  std::uint64_t draw() {  // splitmix64
    std::uint64_t z = (random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  CUstream_st& at(cudaStream_t stream) { return stream == nullptr ? default_stream : *stream; }

  template <class F>
  void for_each_stream(F&& f) {
    f(default_stream);
    for (const auto& stream : streams) f(*stream);
  }

  const Region* region_of(const void* data, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    auto after = regions.upper_bound(address);
    if (after == regions.begin()) return nullptr;
    --after;
    return address + bytes <= after->first + after->second.bytes ? &after->second : nullptr;
  }
  /// The address behind a region may be another's: memory of the host, for one.
  const Region* region_at(const void* data) const { return region_of(data, 1); }
  bool is_device(const void* data, std::size_t bytes) const {
    const Region* region = region_of(data, bytes);
    return region != nullptr && region->device;
  }
  bool reaches(int gpu, const void* data) const {
    const Region* region = region_at(data);
    return region != nullptr &&
           (!region->device || region->gpu == gpu || peer_access.contains({gpu, region->gpu}));
  }
  bool is_pageable(const void* data) const { return region_at(data) == nullptr; }

  static bool is_ready(const CUstream_st& stream) {
    if (stream.tasks.empty()) return false;
    const Task& task = stream.tasks.front();
    return task.awaited == nullptr || task.awaited->completed >= task.awaited_record;
  }

  void die(cudaError_t error) {
    dead = error;
    for_each_stream([](CUstream_st& stream) { stream.tasks.clear(); });
    for (const auto& event : events) event->completed = event->issued;
  }

  void run_one(CUstream_st& stream) {
    Task task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    current = &stream;
    clock_ns += kTaskNs;
    if (task.awaited != nullptr) return;
    if (tasks_run++ == failing_task) return die(task_error);
    task.run();
  }

  /// Runs tasks in a random allowed order until `done`.
  template <class Done>
  void run_until(Done&& done) {
    std::vector<CUstream_st*> ready;
    while (dead == cudaSuccess && !done()) {
      ready.clear();
      for_each_stream([&](CUstream_st& stream) {
        if (is_ready(stream)) ready.push_back(&stream);
      });
      if (ready.empty()) {
        std::fputs("cuda_on_cpu: the host waits for work that can never run\n", stderr);
        std::abort();
      }
      // Streams run in bursts, so that one may be far ahead of another.
      const auto same = std::find(ready.begin(), ready.end(), current);
      const std::uint64_t word = draw();
      run_one(same != ready.end() && word % 8 != 0 ? **same : *ready[(word >> 8) % ready.size()]);
    }
  }

  void run_everything() {
    run_until([&] {
      bool idle = true;
      for_each_stream([&](CUstream_st& stream) { idle = idle && stream.tasks.empty(); });
      return idle;
    });
  }
};

Engine& engine();

// Of the calling thread.
inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;

/// Does `body` under the lock unless the call is to fail; logs it.
template <class Body>
cudaError_t api(Call call, Body&& body) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  call.gpu = current_device;
  e.log.push_back(std::move(call));
  cudaError_t error = e.dead;
  if (e.failable++ == e.failing_call) error = e.call_error;
  if (error == cudaSuccess) error = body(e);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// The default stream is the current GPU's.
inline int gpu_of(cudaStream_t stream) {
  return stream == nullptr ? current_device : stream->gpu;
}

inline Call named(CallKind kind, const char* name) {
  Call call;
  call.kind = kind;
  call.name = name;
  return call;
}

inline Call on_stream(CallKind kind, const char* name, cudaStream_t stream) {
  Call call = named(kind, name);
  call.stream = stream == nullptr ? 0 : stream->id;
  call.stream_gpu = gpu_of(stream);
  return call;
}

inline Call transfer(CallKind kind, const char* name, cudaStream_t stream, void* to,
                     const void* from, std::size_t bytes) {
  Call call = on_stream(kind, name, stream);
  call.to = to;
  call.from = from;
  call.bytes = bytes;
  return call;
}

}  // namespace cuda_on_cpu
