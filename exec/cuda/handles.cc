// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/handles.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::exec::cuda {

StreamHandle make_stream_handle(int priority) {
  int least = 0, greatest = 0;
  SHARDWRIGHT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  // Non-blocking: nothing ever runs on the default stream, and nothing may wait for it.
  SHARDWRIGHT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                std::clamp(priority, greatest, least)));
  return StreamHandle(stream);
}

EventHandle make_event_handle(EventUse use) {
  cudaEvent_t event = nullptr;
  const unsigned flags =
      use == EventUse::kTime ? cudaEventDefault : cudaEventBlockingSync | cudaEventDisableTiming;
  SHARDWRIGHT_CUDA(cudaEventCreateWithFlags(&event, flags));
  return EventHandle(event);
}

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  SHARDWRIGHT_CUDA(cudaHostAlloc(&data, bytes, cudaHostAllocPortable));
  return PinnedMemory(data);
}

void check_cublas(cublasStatus_t status, const char* call, const std::source_location& where) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::string_view file = where.file_name();
  file.remove_prefix(file.rfind('/') + 1);
  // The name of the function says enough of a call with fifteen arguments.
  const std::string_view whole = call;
  throw Error(
      fmt::format("{} failed at {}:{}: {} ({})", whole.substr(0, whole.find('(')), file,
                  where.line(), cublasLtGetStatusString(status), cublasLtGetStatusName(status)),
      ExitCode::kFailed);
}

}  // namespace shardwright::exec::cuda
