// SPDX-License-Identifier: Apache-2.0
#include "exec/poison.h"

#include <algorithm>
#include <map>

namespace shardwright::exec {

namespace {

/// The unit whose parameters the operation reads, or -1.
std::int32_t read_unit(const OpInstance& at, const Op& op, const ParameterLayout& layout) {
  const bool is_head = at.unit == layout.head_unit();
  const auto unit_of = [&](int tensor) { return layout.tensor(tensor).unit; };
  const bool forward = op.phase == Phase::kForward || op.phase == Phase::kRecompute;
  switch (op.kind) {
    case OpKind::kNorm:
      return unit_of(is_head ? layout.final_norm() : layout.layer(at.unit - 1).norm1);
    case OpKind::kQkNorm:
      return unit_of(layout.layer(at.unit - 1).query_norm);
    case OpKind::kEmbedding:
      return forward ? 0 : -1;
    case OpKind::kHeadProjection:
      return unit_of(layout.head());
    case OpKind::kInputGradient:
      return is_head ? unit_of(layout.head()) : at.unit;
    case OpKind::kQkvProjection:
    case OpKind::kOutputProjection:
    case OpKind::kGateUpProjection:
    case OpKind::kUpProjection:
    case OpKind::kDownProjection:
      return at.unit;
    default:
      return -1;
  }
}

}  // namespace

Poison::Poison(const Schedule& schedule, const Sharding& sharding, bool active) : active_(active) {
  // Whole parameters hold the master or are gathered in place.
  if (!active || sharding.kind() != ShardingKind::kParameters) return;
  struct LastRead {
    OpId id;
    std::int32_t unit;
  };
  std::map<const void*, LastRead> last_read;  // by buffer
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kAllGather) {
      const std::int32_t unit = op.target == 127 ? schedule.norm_unit() : at.unit + op.target;
      const auto found = last_read.find(sharding.unit(unit).parameters.data);
      if (found == last_read.end()) return;
      dead_.emplace_back(found->second.id, found->second.unit);
      last_read.erase(found);
      return;
    }
    const std::int32_t unit = read_unit(at, op, sharding.layout());
    if (unit >= 0) last_read[sharding.unit(unit).parameters.data] = {at.id, unit};
  });
  for (const auto& [buffer, last] : last_read) dead_.emplace_back(last.id, last.unit);
  std::sort(dead_.begin(), dead_.end());
}

}  // namespace shardwright::exec
