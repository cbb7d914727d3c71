// SPDX-License-Identifier: Apache-2.0
// Ties the tables of a trace together: each kernel to the call that launched it, each call to the
// operator it was made in, each operator to the one around it.
//
// A call and its kernel share a correlation id. An id that occurs more than once (several processes
// or devices in one file) means the latest call that began before the kernel. Operators and calls
// nest by time on their thread, which also holds for traces whose "External id" is of no use.
#pragma once

#include <cstdint>
#include <vector>

#include "profiles/import/observe.h"
#include "profiles/import/trace_tables.h"
#include "profiles/observation.h"

namespace shardwright::profiles {

struct JoinCounts {
  std::int64_t without_call = 0;  // device work whose call is not in the trace
  std::int64_t ambiguous = 0;     // calls that share a correlation id with another
};

/// Sets HostRange::parent, RuntimeCall::range and DeviceSpan::call. Sorts ranges by thread and
/// time.
JoinCounts join(TraceTables& tables);

// What it costs the host to launch one kernel, from the times between launches.
//
// A thread that launches kernels one after the other spends per kernel what lies between their
// launches: operator dispatch, autograd, Python. Not counted are gaps in which the host waited (a
// synchronisation, an allocation, a full launch queue) and those at FSDP's own hooks; gaps above
// ten times the median count as that much, because then the host did something else.

/// One observation (WorkKind::kHost) per step and phase that has at least eight gaps.
std::vector<Observation> launch_costs(const TraceTables& tables, const RangeWalk& walk);

/// What a step adds to its operations (WorkKind::kHost of no kernels): the time between the last
/// kernel that was launched before a step began and the first one launched in it, for which the
/// device had nothing to do. None for the first step of a trace.
std::vector<Observation> step_costs(const TraceTables& tables, const RangeWalk& walk);

}  // namespace shardwright::profiles
