// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/network_times.h"

#include <algorithm>
#include <cstdlib>

#include "sim/cost/cost.h"
#include "sim/cost/to_ns.h"

namespace shardwright::sim {

std::vector<std::optional<Nanoseconds>> network_times(const Schedule& schedule, std::int64_t stage,
                                                      const profiles::Profile& profile) {
  CostModel model(profile);
  std::vector<OpCost> costs;
  model.cost(schedule, costs);
  std::vector<std::optional<Nanoseconds>> times(schedule.ops.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.work.kind == WorkKind::kCollective) times[i] = costs[i].alone_ns;
    if (op.peer < 0) continue;
    times[i] = 0;
    if (op.kind != OpKind::kSend) continue;
    // Between the last stage and the first a message goes as far as between the first two.
    const bool neighbours = std::abs(op.peer - stage) == 1;
    const std::int64_t edge = neighbours ? std::min<std::int64_t>(op.peer, stage) : 0;
    times[i] = to_ns(model.operations().transfer_s(edge, static_cast<double>(op.work.bytes)));
  }
  return times;
}

}  // namespace shardwright::sim
