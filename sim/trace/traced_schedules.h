// SPDX-License-Identifier: Apache-2.0
// The schedules of a trace: its plan lowered again, so that each slice finds its operation.
#pragma once

#include <vector>

#include "sim/core/schedule.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

/// The plan in the trace, lowered again with the stack that ships under its name: a schedule for
/// each stage. Throws Error when there is none, or when it is not this trace's: it has many more
/// operations than there are spans, or others.
std::vector<Schedule> schedules_of(const StepTrace& trace);

}  // namespace shardwright::sim
