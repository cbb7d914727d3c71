// SPDX-License-Identifier: Apache-2.0
// CUDA streams, events and pinned memory that are given back when their owner dies.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <source_location>
#include <type_traits>

#include "kernels/cuda/cuda_error.h"

namespace shardwright::exec::cuda {

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct FreeHost {
  void operator()(void* data) const { cudaFreeHost(data); }
};

using StreamHandle = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using EventHandle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using PinnedMemory = std::unique_ptr<void, FreeHost>;

/// Lower runs first; clamped to what the device has.
StreamHandle make_stream_handle(int priority);
enum class EventUse {
  kOrder,  // without a time; the host sleeps where it waits for one
  kTime
};
EventHandle make_event_handle(EventUse use);
PinnedMemory allocate_pinned(std::size_t bytes);

}  // namespace shardwright::exec::cuda

// Failed calls of cuBLASLt become Error with the call, file, line and the library's own text.

namespace shardwright::exec::cuda {

/// Throws Error (ExitCode::kFailed) unless the call succeeded.
void check_cublas(cublasStatus_t status, const char* call,
                  const std::source_location& where = std::source_location::current());

}  // namespace shardwright::exec::cuda

/// SHARDWRIGHT_CUBLAS(cublasLtCreate(&handle));
#define SHARDWRIGHT_CUBLAS(call) ::shardwright::exec::cuda::check_cublas((call), #call)
