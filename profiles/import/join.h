// SPDX-License-Identifier: Apache-2.0
// Ties the tables of a trace together: each kernel to the call that launched it, each call to the
// operator it was made in, each operator to the one around it.
//
// A call and its kernel share a correlation id. An id that occurs more than once (several processes
// or devices in one file) means the latest call that began before the kernel. Operators and calls
// nest by time on their thread, which also holds for traces whose "External id" is of no use.
#pragma once

#include <cstdint>

#include "profiles/import/trace_tables.h"

namespace shardwright::profiles {

struct JoinCounts {
  std::int64_t without_call = 0;  // device work whose call is not in the trace
  std::int64_t ambiguous = 0;     // calls that share a correlation id with another
};

/// Sets HostRange::parent, RuntimeCall::range and DeviceSpan::call. Sorts ranges by thread and
/// time.
JoinCounts join(TraceTables& tables);

}  // namespace shardwright::profiles
