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
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "profiles/observation.h"
#include "sim/core/layout.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

/// Throws Error when the trace has no plan in it or is not of that plan (schedules_of), or when no
/// kernel in it has an operation.
profiles::ObservationSet observations_of(const StepTrace& trace);

/// The same of a step that was measured just now, of the schedules of its stages.
profiles::ObservationSet observations_of(const StepTrace& trace, std::span<const Schedule> stages,
                                         std::int64_t gpus_per_node);

// When what a stage of a pipeline receives was sent: what a receive lasts before, it waits.

/// By receive, the begin of its send: the messages of a channel arrive in the order in which they
/// are sent, between ranks of one place in their stages. Nothing of a receive whose send is not in
/// the trace, as in predictions, where a message is the receive.
std::map<SpanKey, Nanoseconds> sent_messages(const StepTrace& trace);

// When ranks have all come to the gradient norm of a measured step, in which they exchange numbers:
// what the norm lasts before, a rank waits for others.

/// By step and rank. The rank that comes last does not wait, so the shortest norm of a step is what
/// each of its ranks takes, at the end; of several kernels the last one waits.
std::map<LaneKey, Nanoseconds> norm_meetings(const Timeline& timeline,
                                             const std::function<bool(OpId)>& is_norm);

// Which ranks of a trace meet in an operation: those of one group do, other groups do the same
// beside them.

class MeetingRanks {
 public:
  explicit MeetingRanks(const StepTrace& trace);

  /// A number that the ranks of the group share; the same for all where the trace does not say of
  /// which plan its ranks are, as in predictions.
  std::int64_t group_of(const TracedOperation& operation, std::int32_t rank);
  /// The group that tells most of all ranks: the stages', the replicas', or that of tensor ranks.
  CommGroup largest() const;

 private:
  std::optional<RankMesh> mesh_;
  std::map<std::pair<CommGroup, std::int32_t>, std::int64_t> first_;  // by group and rank
};

// What ranks of a pipeline measured, as passes: which ran when on each rank, and what it waited for
// in between.

/// Fills stages and passes of a measured timeline, whose spans are of all ranks, from the stages'
/// schedules. A pass lasts from its first to its last operation on the compute stream; what is
/// between passes is a bubble, also until all ranks have come to the norm behind the last one, and
/// what follows is the optimizer's.
void add_measured_passes(const std::vector<Schedule>& stages, const RankMesh& mesh,
                         Timeline& timeline);

}  // namespace shardwright::sim
