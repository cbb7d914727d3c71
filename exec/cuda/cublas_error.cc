// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cublas_error.h"

#include <fmt/core.h>

#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::exec::cuda {

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
