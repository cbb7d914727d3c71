#include "tests/support/cuda_on_cpu/fake_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "tests/support/cuda_on_cpu/fake_runtime.h"

using cuda_on_cpu::Call;
using cuda_on_cpu::CallKind;

namespace {

struct Task {
  std::function<void()> run;      // empty: a wait
  CUevent_st* awaited = nullptr;  // of a wait
  std::uint64_t awaited_record = 0;
};

}  // namespace

struct CUstream_st {
  int id = 0;
  std::deque<Task> tasks;
};

struct CUevent_st {
  int id = 0;
  bool timed = true;
  std::uint64_t issued = 0;  // records
  std::uint64_t completed = 0;
  std::int64_t time_ns = 0;  // of the last completed record
};

namespace {

constexpr std::int64_t kTaskNs = 1000;
constexpr std::size_t kDeviceAlignment = 256;
/// A call that fails has this number when none should.
constexpr std::int64_t kNever = -1;

struct Region {
  std::size_t bytes = 0;
  bool device = false;
};

struct Engine {
  std::mutex mutex;
  cuda_on_cpu::FakeMachine machine;
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
  std::size_t allocated = 0;

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
  bool is_device(const void* data, std::size_t bytes) const {
    const Region* region = region_of(data, bytes);
    return region != nullptr && region->device;
  }
  bool is_pageable(const void* data) const { return region_of(data, 0) == nullptr; }

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

Engine& engine() {
  static Engine instance;
  return instance;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

/// Does `body` under the lock unless the call is to fail; logs it.
template <class Body>
cudaError_t api(Call call, Body&& body) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  e.log.push_back(std::move(call));
  cudaError_t error = e.dead;
  if (e.failable++ == e.failing_call) error = e.call_error;
  if (error == cudaSuccess) error = body(e);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

Call named(CallKind kind, const char* name) {
  Call call;
  call.kind = kind;
  call.name = name;
  return call;
}

Call on_stream(CallKind kind, const char* name, cudaStream_t stream) {
  Call call = named(kind, name);
  call.stream = stream == nullptr ? 0 : stream->id;
  return call;
}

Call transfer(CallKind kind, const char* name, cudaStream_t stream, void* to, const void* from,
              std::size_t bytes) {
  Call call = on_stream(kind, name, stream);
  call.to = to;
  call.from = from;
  call.bytes = bytes;
  return call;
}

cudaError_t make_region(Engine& e, void** data, std::size_t bytes, bool device) {
  if (bytes == 0) {
    *data = nullptr;
    return cudaSuccess;
  }
  if (device && e.allocated + bytes > e.machine.memory_bytes) return cudaErrorMemoryAllocation;
  *data = ::operator new (bytes, std::align_val_t{kDeviceAlignment});
  std::memset(*data, 0xff, bytes);
  e.regions[reinterpret_cast<std::uintptr_t>(*data)] = {bytes, device};
  if (device) e.allocated += bytes;
  return cudaSuccess;
}

cudaError_t free_region(Engine& e, void* data, bool device) {
  if (data == nullptr) return cudaSuccess;
  const auto found = e.regions.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == e.regions.end() || found->second.device != device) return cudaErrorInvalidValue;
  e.run_everything();  // as CUDA waits for the device
  if (device) e.allocated -= found->second.bytes;
  e.regions.erase(found);
  ::operator delete (data, std::align_val_t{kDeviceAlignment});
  return cudaSuccess;
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t width, std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  }
}

/// Copies as CUDA does: pageable sources are read at once, pageable targets make the host wait.
cudaError_t copy(Engine& e, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  const auto known = [&](const void* data) {
    const Region* region = e.region_of(data, 0);
    return region == nullptr || e.region_of(data, bytes) != nullptr;
  };
  if (!known(to) || !known(from)) return cudaErrorInvalidValue;
  const bool to_device = e.is_device(to, bytes), from_device = e.is_device(from, bytes);
  if (kind == cudaMemcpyHostToDevice && (!to_device || from_device)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToDevice && !(to_device && from_device)) return cudaErrorInvalidValue;
  CUstream_st& queue = e.at(stream);
  if (e.is_pageable(from)) {
    std::vector<char> staged(static_cast<const char*>(from),
                             static_cast<const char*>(from) + bytes);
    queue.tasks.push_back(
        {[to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); }});
  } else {
    queue.tasks.push_back({[=] { std::memmove(to, from, bytes); }});
  }
  if (e.is_pageable(to)) {
    e.log.push_back(on_stream(CallKind::kSynchronize, "a copy to pageable memory", stream));
    e.run_until([&] { return queue.tasks.empty(); });
  }
  return e.dead;
}

cudaError_t make_stream(cudaStream_t* stream, const char* name, int priority) {
  Call call = named(CallKind::kCreate, name);
  call.priority = priority;
  return api(std::move(call), [&](Engine& e) {
    e.streams.push_back(std::make_unique<CUstream_st>());
    *stream = e.streams.back().get();
    (*stream)->id = ++e.streams_made;
    e.log.back().stream = (*stream)->id;
    return cudaSuccess;
  });
}

cudaError_t make_event(cudaEvent_t* event, const char* name, unsigned flags) {
  return api(named(CallKind::kCreate, name), [&](Engine& e) {
    e.events.push_back(std::make_unique<CUevent_st>());
    *event = e.events.back().get();
    (*event)->id = ++e.events_made;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    e.log.back().event = (*event)->id;
    return cudaSuccess;
  });
}

}  // namespace

namespace cuda_on_cpu {

void reset(const FakeMachine& machine) {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  for (const auto& [address, region] : e.regions) {
    ::operator delete (reinterpret_cast<void*>(address), std::align_val_t{kDeviceAlignment});
  }
  e.regions.clear();
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
  e.allocated = 0;
  last_error = cudaSuccess;
}

std::vector<Call> call_log() {
  Engine& e = engine();
  const std::lock_guard lock(e.mutex);
  return e.log;
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
  return e.allocated;
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
  return api(std::move(call), [&](Engine& e) {
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
  return enqueue_kernel(stream, std::move(call), [launch] { run(launch); });
}

}  // namespace cuda_on_cpu

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "unknown error";
  }
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api(named(CallKind::kQuery, "cudaDriverGetVersion"), [&](Engine& e) {
    *version = e.machine.driver_version;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return api(named(CallKind::kQuery, "cudaRuntimeGetVersion"), [&](Engine& e) {
    *version = e.machine.runtime_version;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return api(named(CallKind::kQuery, "cudaGetDeviceCount"), [&](Engine& e) {
    if (e.machine.device_count_error != cudaSuccess) return e.machine.device_count_error;
    *count = e.machine.devices;
    return e.machine.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return api(named(CallKind::kQuery, "cudaSetDevice"), [&](Engine& e) {
    if (device < 0 || device >= e.machine.devices) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api(named(CallKind::kQuery, "cudaGetDeviceProperties"), [&](Engine& e) {
    if (device < 0 || device >= e.machine.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "a GPU on the processor");
    properties->totalGlobalMem = e.machine.memory_bytes;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->major = e.machine.compute_major;
    properties->minor = e.machine.compute_minor;
    properties->multiProcessorCount = 4;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->warpSize = 32;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api(named(CallKind::kQuery, "cudaDeviceGetStreamPriorityRange"), [&](Engine&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return api(named(CallKind::kQuery, "cudaDeviceCanAccessPeer"), [&](Engine& e) {
    *can = e.machine.peers ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return api(named(CallKind::kQuery, "cudaDeviceEnablePeerAccess"),
             [](Engine&) { return cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
  return api(named(CallKind::kSynchronize, "cudaDeviceSynchronize"), [](Engine& e) {
    e.run_everything();
    return e.dead;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Call call = named(CallKind::kMalloc, "cudaMalloc");
  call.bytes = bytes;
  return api(std::move(call), [&](Engine& e) { return make_region(e, data, bytes, true); });
}

cudaError_t cudaFree(void* data) {
  return api(named(CallKind::kFree, "cudaFree"),
             [&](Engine& e) { return free_region(e, data, true); });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  Call call = named(CallKind::kHostAlloc, "cudaHostAlloc");
  call.bytes = bytes;
  return api(std::move(call), [&](Engine& e) { return make_region(e, data, bytes, false); });
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return cudaHostAlloc(data, bytes, 0);
}

cudaError_t cudaFreeHost(void* data) {
  return api(named(CallKind::kHostFree, "cudaFreeHost"),
             [&](Engine& e) { return free_region(e, data, false); });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return api(named(CallKind::kQuery, "cudaMemGetInfo"), [&](Engine& e) {
    *total = e.machine.memory_bytes;
    *free = e.machine.memory_bytes - e.allocated;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return api(named(CallKind::kQuery, "cudaPointerGetAttributes"), [&](Engine& e) {
    const Region* region = e.region_of(data, 0);
    *attributes = {};
    attributes->type = region == nullptr ? cudaMemoryTypeUnregistered
                       : region->device  ? cudaMemoryTypeDevice
                                         : cudaMemoryTypeHost;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return api(transfer(CallKind::kSynchronize, "cudaMemcpy", nullptr, to, from, bytes),
             [&](Engine& e) {
               const cudaError_t error = copy(e, to, from, bytes, kind, nullptr);
               e.run_until([&] { return e.default_stream.tasks.empty(); });
               return error == cudaSuccess ? e.dead : error;
             });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return api(transfer(CallKind::kCopy, "cudaMemcpyAsync", stream, to, from, bytes),
             [&](Engine& e) { return copy(e, to, from, bytes, kind, stream); });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return api(transfer(CallKind::kCopy, "cudaMemcpy2DAsync", stream, to, from, width * height),
             [&](Engine& e) {
               if (height == 0) return cudaSuccess;
               const auto extent = [&](std::size_t pitch) { return pitch * (height - 1) + width; };
               if (width > to_pitch || width > from_pitch || !e.is_device(to, extent(to_pitch)) ||
                   !e.is_device(from, extent(from_pitch))) {
                 return cudaErrorInvalidValue;
               }
               e.at(stream).tasks.push_back(
                   {[=] { copy_rows(to, to_pitch, from, from_pitch, width, height); }});
               return cudaSuccess;
             });
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  const cudaError_t error = cudaMemsetAsync(data, value, bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return api(transfer(CallKind::kSet, "cudaMemsetAsync", stream, data, nullptr, bytes),
             [&](Engine& e) {
               if (!e.is_device(data, bytes)) return cudaErrorInvalidValue;
               e.at(stream).tasks.push_back({[=] { std::memset(data, value, bytes); }});
               return cudaSuccess;
             });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream, "cudaStreamCreate", 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make_stream(stream, "cudaStreamCreateWithFlags", 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return make_stream(stream, "cudaStreamCreateWithPriority", priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api(on_stream(CallKind::kDestroy, "cudaStreamDestroy", stream), [&](Engine& e) {
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    e.run_until([&] { return stream->tasks.empty(); });
    if (e.current == stream) e.current = nullptr;
    std::erase_if(e.streams, [&](const auto& mine) { return mine.get() == stream; });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api(on_stream(CallKind::kSynchronize, "cudaStreamSynchronize", stream), [&](Engine& e) {
    e.run_until([&] { return e.at(stream).tasks.empty(); });
    return e.dead;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api(on_stream(CallKind::kQuery, "cudaStreamQuery", stream), [&](Engine& e) {
    return e.at(stream).tasks.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Call call = on_stream(CallKind::kWait, "cudaStreamWaitEvent", stream);
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->issued > 0) e.at(stream).tasks.push_back({{}, event, event->issued});
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return api(on_stream(CallKind::kHostFunction, "cudaLaunchHostFunc", stream), [&](Engine& e) {
    e.at(stream).tasks.push_back({[=] { function(data); }});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(event, "cudaEventCreate", cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make_event(event, "cudaEventCreateWithFlags", flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api(named(CallKind::kDestroy, "cudaEventDestroy"), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    // Streams that wait for it may have that wait still before them.
    if (event->issued > event->completed) {
      e.run_until([&] { return event->issued == event->completed; });
    }
    e.for_each_stream([&](CUstream_st& stream) {
      std::erase_if(stream.tasks, [&](const Task& task) { return task.awaited == event; });
    });
    std::erase_if(e.events, [&](const auto& mine) { return mine.get() == event; });
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call call = on_stream(CallKind::kRecord, "cudaEventRecord", stream);
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    const std::uint64_t record = ++event->issued;
    e.at(stream).tasks.push_back({[event, record] {
      event->completed = record;
      event->time_ns = engine().clock_ns;
    }});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call = named(CallKind::kSynchronize, "cudaEventSynchronize");
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    e.run_until([&] { return event->completed == event->issued; });
    return e.dead;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api(named(CallKind::kQuery, "cudaEventQuery"), [&](Engine&) {
    return event->completed == event->issued ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return api(named(CallKind::kQuery, "cudaEventElapsedTime"), [&](Engine&) {
    if (!begin->timed || !end->timed) return cudaErrorInvalidResourceHandle;
    if (begin->completed != begin->issued || end->completed != end->issued) {
      return cudaErrorNotReady;
    }
    *milliseconds = static_cast<float>(end->time_ns - begin->time_ns) * 1e-6f;
    return cudaSuccess;
  });
}
