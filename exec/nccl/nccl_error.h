// SPDX-License-Identifier: Apache-2.0
// A failed NCCL call as an exception: which call, where, and in the library's own words.
#pragma once

#include <nccl.h>

#include <source_location>
#include <string>

namespace shardwright::exec {

/// "ncclAllGather failed at nccl_communicator.cc:41: unhandled cuda error (...)". The last message
/// of the library is of `comm`, or of the thread when that is null.
std::string nccl_error_text(ncclResult_t status, const char* call, ncclComm_t comm,
                            const std::source_location& where);

/// Throws Error unless the call succeeded or, without blocking, goes on.
void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm = nullptr,
                const std::source_location& where = std::source_location::current());

}  // namespace shardwright::exec
