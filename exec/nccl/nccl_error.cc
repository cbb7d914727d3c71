// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/nccl_error.h"

#include <fmt/core.h>

#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::exec {

std::string nccl_error_text(ncclResult_t status, const char* call, ncclComm_t comm,
                            const std::source_location& where) {
  std::string_view file = where.file_name();
  file = file.substr(file.rfind('/') + 1);
  const char* last = ncclGetLastError(comm);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  // NCCL names the ranks, not what would be accepted.
  const char* expected = detail.find("Duplicate GPU") != std::string::npos
                             ? "; expected at most one process for each GPU of a machine"
                             : "";
  return fmt::format("{} failed at {}:{}: {}{}{}", call, file, where.line(),
                     ncclGetErrorString(status), detail, expected);
}

void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm,
                const std::source_location& where) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(nccl_error_text(status, call, comm, where), ExitCode::kFailed);
}

}  // namespace shardwright::exec
