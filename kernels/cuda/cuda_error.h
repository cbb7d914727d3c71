// SPDX-License-Identifier: Apache-2.0
// Failed CUDA calls become Error with the call, file, line and CUDA's own text.
#pragma once

#include <cuda_runtime.h>

#include <source_location>

namespace shardwright::kernels::cuda {

[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call,
                                   const std::source_location& where);

/// Throws Error (ExitCode::kFailed) unless the call succeeded, and clears what CUDA remembers of
/// the failure: the next call shall not be blamed for it. (Failures of kernels stay with the
/// context.)
inline void check_cuda(cudaError_t status, const char* call,
                       const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess) [[unlikely]] {
    throw_cuda_error(status, call, where);
  }
}

}  // namespace shardwright::kernels::cuda

/// SHARDWRIGHT_CUDA(cudaMalloc(&data, bytes));
#define SHARDWRIGHT_CUDA(call) ::shardwright::kernels::cuda::check_cuda((call), #call)
