// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_error.h"

#include <fmt/format.h>

#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::kernels::cuda {

void throw_cuda_error(cudaError_t status, const char* call, const std::source_location& where) {
  cudaGetLastError();
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos) {
    file.remove_prefix(slash + 1);
  }
  throw Error(fmt::format("{} failed at {}:{}: {} ({})", call, file, where.line(),
                          cudaGetErrorString(status), cudaGetErrorName(status)),
              ExitCode::kFailed);
}

}  // namespace shardwright::kernels::cuda
