// SPDX-License-Identifier: Apache-2.0
#include "exec/poison.h"

#include <algorithm>
#include <map>

namespace shardwright::exec {

namespace {

/// Whether the operation reads its weight, not only writes its gradient.
bool reads_weight(const Op& op) {
  if (op.weight == Weight::kNone || op.kind == OpKind::kWeightGradient) return false;
  if (op.phase == Phase::kReduce) return false;
  const bool backward = op.phase == Phase::kBackward;
  return op.kind != OpKind::kAccumulate && !(op.kind == OpKind::kEmbedding && backward);
}

}  // namespace

Poison::Poison(const Schedule& schedule, const Sharding& sharding, bool active) : active_(active) {
  // Whole parameters hold the master or are gathered in place.
  if (!active || sharding.shards() != Sharded::kParameters) return;
  struct LastRead {
    OpId id;
    std::int32_t unit;
  };
  std::map<const void*, LastRead> last_read;  // by buffer
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    if (moves_activations(op)) return;
    if (op.kind == OpKind::kAllGather) {
      const std::int32_t unit = schedule.target(op, at.unit);
      const auto found = last_read.find(sharding.unit(unit).parameters.data);
      if (found == last_read.end()) return;
      dead_.emplace_back(found->second.id, found->second.unit);
      last_read.erase(found);
      return;
    }
    if (!reads_weight(op)) return;
    const ParameterLayout& layout = sharding.layout();
    const std::int32_t unit = layout.tensor(layout.weight(op.weight, at.unit).first).unit;
    last_read[sharding.unit(unit).parameters.data] = {at.id, unit};
  });
  for (const auto& [buffer, last] : last_read) dead_.emplace_back(last.id, last.unit);
  std::sort(dead_.begin(), dead_.end());
}

}  // namespace shardwright::exec
