// SPDX-License-Identifier: Apache-2.0
// Which ranks of a trace meet in an operation: those of one group do, other groups do the same
// beside them.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "sim/core/rank_mesh.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

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

}  // namespace shardwright::sim
