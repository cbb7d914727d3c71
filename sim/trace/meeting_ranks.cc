// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/meeting_ranks.h"

#include "sim/core/base/error.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

MeetingRanks::MeetingRanks(const StepTrace& trace) {
  if (!trace.identity || trace.origin.device.empty()) return;
  const TraceIdentity& identity = *trace.identity;
  try {
    check_plan(identity.plan, model_of(identity, trace.name), identity.gpus_per_node);
  } catch (const Error&) {  // a stranger's: nothing but the ranks themselves is known
    return;
  }
  mesh_.emplace(identity.plan, 1);
}

std::int64_t MeetingRanks::group_of(const TracedOperation& operation, std::int32_t rank) {
  if (!mesh_ || !operation.group || rank < 0 || rank >= mesh_->ranks) return 0;
  // A trace does not tell those apart that divide the replicas.
  const CommGroup group = told_as(*operation.group);
  const auto [at, fresh] = first_.try_emplace({group, rank}, 0);
  if (fresh) at->second = mesh_->members(group, rank).front();
  return at->second;
}

CommGroup MeetingRanks::largest() const {
  if (mesh_ && mesh_->pp > 1) return CommGroup::kPipeline;
  return mesh_ && mesh_->dp == 1 && mesh_->tp > 1 ? CommGroup::kTensor : CommGroup::kData;
}

}  // namespace shardwright::sim
