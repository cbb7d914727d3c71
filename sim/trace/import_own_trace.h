// SPDX-License-Identifier: Apache-2.0
// A trace of `run --trace` as observations: every operation's time beside its work.
//
// The trace carries the plan it was recorded with (sim/core/trace_identity.h). The plan is lowered
// again, and each slice finds its operation, hence its Work, by id; a slice whose name is not that
// of its operation means another version wrote the trace, and is an error. An operation that runs
// as several kernels is one observation of their sum.
//
// What else is observed:
//   host   where operations run when they are issued (the host device's inline streams) the gap
//          between two of them is the cost of issuing the second; elsewhere it is the host's slice.
//          What a step takes beyond its operations and gaps is one observation of no kernels.
//   waits  operations in which ranks wait for each other (collectives, and the gradient norm, which
//          exchanges numbers) share an `instance`: the least over ranks is the one without waiting.
// A slice of no duration, or of an operation without work, says nothing and is left out.
#pragma once

#include <filesystem>
#include <string>

#include "profiles/observation.h"
#include "sim/core/chrome_trace_reader.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/core/trace_identity.h"

namespace shardwright::sim {

/// The schedule of the plan in the trace, with the stack that ships under its name. Throws Error.
Schedule lower_again(const TraceIdentity& identity, const std::string& name);

/// `name` stands for the file in errors. Throws Error when the trace has no plan in it or is not of
/// that plan.
profiles::ObservationSet own_trace_observations(const ReadTrace& trace, const std::string& name);

/// The same of a timeline that was measured just now, of `schedule`. `notes` are those of a trace
/// (TraceOrigin).
profiles::ObservationSet timeline_observations(const Schedule& schedule, const Timeline& timeline,
                                               std::int64_t gpus_per_node, const TraceNotes& notes,
                                               const std::string& name);

profiles::ObservationSet import_own_trace(const std::filesystem::path& file);

/// Whether the trace was written by this program, with the plan in it.
bool is_own_trace(const ReadTrace& trace);

}  // namespace shardwright::sim
