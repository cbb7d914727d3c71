// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime and driver without a device, for recording what PyTorch's own allocator library
// does.
//
// It hands out rising addresses up to a limit and runs on a clock that the caller sets: an event is
// done when the time up to which its stream was busy, when it was recorded, has passed. Built
// twice, as libcudart.so.12 and as libcuda.so.1; only the first has the state.
#include "fake_cuda.h"

#include <cstdint>
#include <cstring>
#include <map>

#ifdef FAKE_CUDA_RUNTIME
namespace {

std::int64_t now = 0;
std::map<void*, std::int64_t> busy_until;         // by stream
std::map<void*, std::int64_t> event_done;         // by event
std::map<std::uint64_t, std::uint64_t> segments;  // sizes by address
std::map<std::uint64_t, std::uint64_t> handles;   // sizes of physical pages
std::uint64_t limit = 0, used = 0, next_address = kFakeBase, next_handle = 1, next_event = 1;
constexpr int kNoMemory = 2, kNotReady = 600;

}  // namespace

void fake_cuda_set_limit(std::uint64_t bytes) {
  limit = bytes;
}
void fake_cuda_set_now(std::int64_t time) {
  now = time;
}
void fake_cuda_set_busy_until(void* stream, std::int64_t time) {
  busy_until[stream] = time;
}
std::uint64_t fake_cuda_reserve(std::uint64_t size, std::uint64_t alignment) {
  next_address = (next_address + alignment - 1) / alignment * alignment;
  const std::uint64_t address = next_address;
  next_address += size;
  return address;
}
int fake_cuda_create(std::uint64_t* handle, std::uint64_t size) {
  if (used + size > limit) return kNoMemory;
  used += size;
  *handle = next_handle++;
  handles[*handle] = size;
  return 0;
}
int fake_cuda_release(std::uint64_t handle) {
  used -= handles.at(handle);
  handles.erase(handle);
  return 0;
}

extern "C" {
int cudaMalloc(void** pointer, std::size_t size) {
  if (used + size > limit) return kNoMemory;
  used += size;
  const std::uint64_t address = fake_cuda_reserve(size, 1);
  segments[address] = size;
  *pointer = reinterpret_cast<void*>(address);
  return 0;
}
int cudaFree(void* pointer) {
  if (pointer == nullptr) return 0;
  const auto at = segments.find(reinterpret_cast<std::uint64_t>(pointer));
  used -= at->second;
  segments.erase(at);
  return 0;
}
int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = limit - used;
  *total = limit;
  return 0;
}
int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = reinterpret_cast<void*>(next_event++);
  return 0;
}
int cudaEventRecord(void* event, void* stream) {
  event_done[event] = busy_until[stream];
  return 0;
}
int cudaEventQuery(void* event) {
  return event_done.at(event) <= now ? 0 : kNotReady;
}
int cudaEventSynchronize(void*) {
  return 0;
}
int cudaGetDeviceProperties_v2(void* properties, int) {
  std::memset(properties, 0, 1032);  // cudaDeviceProp of CUDA 12, totalGlobalMem at byte 288
  std::memcpy(static_cast<char*>(properties) + 288, &limit, sizeof limit);
  return 0;
}
int cudaGetDevice(int* device) {
  return *device = 0;
}
int cudaGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}
int cudaStreamIsCapturing(void*, int* status) {
  return *status = 0;
}
const char* cudaGetErrorString(int) {
  return "fake CUDA error";
}
int cudaDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0;
}

// What the library links to and these recordings never need, or need to do nothing.
#define FAKE_NOTHING(name) \
  int name() {             \
    return 0;              \
  }
FAKE_NOTHING(cudaSetDevice)
FAKE_NOTHING(cudaGetLastError)
FAKE_NOTHING(cudaEventDestroy)
FAKE_NOTHING(cudaDeviceSynchronize)
FAKE_NOTHING(cudaStreamSynchronize)
FAKE_NOTHING(cudaStreamQuery)
FAKE_NOTHING(cudaThreadExchangeStreamCaptureMode)
FAKE_NOTHING(cudaDeviceEnablePeerAccess)
FAKE_NOTHING(cudaDeviceGetDefaultMemPool)
FAKE_NOTHING(cudaEventElapsedTime)
FAKE_NOTHING(cudaFreeAsync)
FAKE_NOTHING(cudaIpcCloseMemHandle)
FAKE_NOTHING(cudaIpcGetMemHandle)
FAKE_NOTHING(cudaIpcOpenMemHandle)
FAKE_NOTHING(cudaMallocAsync)
FAKE_NOTHING(cudaMemPoolGetAttribute)
FAKE_NOTHING(cudaMemPoolSetAccess)
FAKE_NOTHING(cudaMemPoolSetAttribute)
FAKE_NOTHING(cudaMemPoolTrimTo)
FAKE_NOTHING(cudaMemcpy)
FAKE_NOTHING(cudaMemcpyAsync)
FAKE_NOTHING(cudaMemcpyPeerAsync)
FAKE_NOTHING(cudaStreamCreateWithPriority)
FAKE_NOTHING(cudaStreamWaitEvent)
}
#else
extern "C" {
int cuMemAddressReserve(std::uint64_t* pointer, std::size_t size, std::size_t, std::uint64_t,
                        unsigned long long) {
  *pointer = fake_cuda_reserve(size, std::uint64_t{20} << 20);
  return 0;
}
int cuMemCreate(std::uint64_t* handle, std::size_t size, const void*, unsigned long long) {
  return fake_cuda_create(handle, size);
}
int cuMemRelease(std::uint64_t handle) {
  return fake_cuda_release(handle);
}
int cuGetErrorString(int, const char** text) {
  *text = "fake CUDA driver error";
  return 0;
}
#define FAKE_NOTHING(name) \
  int name() {             \
    return 0;              \
  }
FAKE_NOTHING(cuMemAddressFree)
FAKE_NOTHING(cuMemMap)
FAKE_NOTHING(cuMemUnmap)
FAKE_NOTHING(cuMemSetAccess)
FAKE_NOTHING(cuMemGetAllocationGranularity)
FAKE_NOTHING(cuMemExportToShareableHandle)
FAKE_NOTHING(cuMemImportFromShareableHandle)
FAKE_NOTHING(cuDevicePrimaryCtxGetState)
FAKE_NOTHING(cuDeviceGetAttribute)
FAKE_NOTHING(cuStreamWriteValue32)
FAKE_NOTHING(cuMemsetD32Async)
FAKE_NOTHING(cuMulticastAddDevice)
FAKE_NOTHING(cuMulticastBindMem)
FAKE_NOTHING(cuMulticastCreate)
}
#endif
