// SPDX-License-Identifier: Apache-2.0
// Failed calls of cuBLASLt become Error with the call, file, line and the library's own text.
#pragma once

#include <cublasLt.h>

#include <source_location>

namespace shardwright::exec::cuda {

/// Throws Error (ExitCode::kFailed) unless the call succeeded.
void check_cublas(cublasStatus_t status, const char* call,
                  const std::source_location& where = std::source_location::current());

}  // namespace shardwright::exec::cuda

/// SHARDWRIGHT_CUBLAS(cublasLtCreate(&handle));
#define SHARDWRIGHT_CUBLAS(call) ::shardwright::exec::cuda::check_cublas((call), #call)
