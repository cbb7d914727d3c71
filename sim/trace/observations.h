// SPDX-License-Identifier: Apache-2.0
// A trace of `run --trace` as observations: every operation's time beside its work.
//
// The plan of the trace is lowered again (schedules_of), and each span finds its operation, hence
// its Work, by id. An operation that runs as several kernels is one observation of their sum.
//
// What else is observed:
//   host   where operations run when they are issued (the host device's inline streams) the gap
//          between two of them is the cost of issuing the second; elsewhere it is the host's span.
//          What a step takes beyond its operations and gaps is one observation of no kernels.
//   waits  operations in which ranks wait for each other (collectives, and the gradient norm, which
//          exchanges numbers) share an `instance`: the least over ranks is the one without waiting.
//   messages  between stages, where they are received and from when they were sent, as collectives
//          of two ranks.
// A span of no duration, or of an operation without work, says nothing and is left out.
#pragma once

#include <cstdint>

#include "profiles/observation.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

/// Throws Error when the trace has no plan in it or is not of that plan (schedules_of), or when no
/// kernel in it has an operation.
profiles::ObservationSet observations_of(const StepTrace& trace);

/// The same of a step that was measured just now, of the schedules of its stages.
profiles::ObservationSet observations_of(const StepTrace& trace, std::span<const Schedule> stages,
                                         std::int64_t gpus_per_node);

}  // namespace shardwright::sim
