// SPDX-License-Identifier: Apache-2.0
// What it costs the host to launch one kernel, from the times between launches.
//
// A thread that launches kernels one after the other spends per kernel what lies between their
// launches: operator dispatch, autograd, Python. Not counted are gaps in which the host waited (a
// synchronisation, an allocation, a full launch queue) and those at FSDP's own hooks; gaps above
// ten times the median count as that much, because then the host did something else.
#pragma once

#include <vector>

#include "profiles/import/range_walk.h"
#include "profiles/import/trace_tables.h"
#include "profiles/observation.h"

namespace shardwright::profiles {

/// One observation (WorkKind::kHost) per step and phase that has at least eight gaps.
std::vector<Observation> launch_costs(const TraceTables& tables, const RangeWalk& walk);

/// What a step adds to its operations (WorkKind::kHost of no kernels): the time between the last
/// kernel that was launched before a step began and the first one launched in it, for which the
/// device had nothing to do. None for the first step of a trace.
std::vector<Observation> step_costs(const TraceTables& tables, const RangeWalk& walk);

}  // namespace shardwright::profiles
