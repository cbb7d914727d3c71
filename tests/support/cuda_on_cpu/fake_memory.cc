// SPDX-License-Identifier: Apache-2.0
// Errors, devices and memory of the fake runtime.
#include <cstring>
#include <new>

#include "tests/support/cuda_on_cpu/fake_engine.h"

using namespace cuda_on_cpu;

namespace {

cudaError_t make_region(Engine& e, void** data, std::size_t bytes, bool device) {
  if (bytes == 0) {
    *data = nullptr;
    return cudaSuccess;
  }
  if (device && e.allocated[current_device] + bytes > e.machine.memory_bytes) {
    return cudaErrorMemoryAllocation;
  }
  *data = ::operator new (bytes, std::align_val_t{kDeviceAlignment});
  std::memset(*data, 0xff, bytes);
  e.regions[reinterpret_cast<std::uintptr_t>(*data)] = {bytes, device, current_device};
  if (device) e.allocated[current_device] += bytes;
  return cudaSuccess;
}

cudaError_t free_region(Engine& e, void* data, bool device) {
  if (data == nullptr) return cudaSuccess;
  const auto found = e.regions.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == e.regions.end() || found->second.device != device) return cudaErrorInvalidValue;
  e.run_everything();  // as CUDA waits for the device
  if (device) e.allocated[found->second.gpu] -= found->second.bytes;
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
    const Region* region = e.region_at(data);
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

struct NamedError {
  cudaError_t error;
  const char *name, *text;
};
constexpr NamedError kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
};

NamedError named_error(cudaError_t error) {
  for (const NamedError& each : kErrors) {
    if (each.error == error) return each;
  }
  return {error, "cudaErrorUnknown", "unknown error"};
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return named_error(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return named_error(error).text;
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
    properties->pciBusID = 0x1b + device;
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

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return api(named(CallKind::kQuery, "cudaDeviceEnablePeerAccess"), [&](Engine& e) {
    if (peer < 0 || peer >= e.machine.devices || peer == current_device || !e.machine.peers) {
      return cudaErrorInvalidDevice;
    }
    const bool is_new = e.peer_access.insert({current_device, peer}).second;
    return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
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
    *free = e.machine.memory_bytes - e.allocated[current_device];
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return api(named(CallKind::kQuery, "cudaPointerGetAttributes"), [&](Engine& e) {
    const Region* region = e.region_at(data);
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
               if (!e.is_device(data, bytes) || !e.reaches(gpu_of(stream), data)) {
                 return cudaErrorInvalidValue;
               }
               e.at(stream).tasks.push_back({[=] { std::memset(data, value, bytes); }});
               return cudaSuccess;
             });
}
