// SPDX-License-Identifier: Apache-2.0
// What every operation of a schedule costs on a given profile: device time alone, device time while
// sharing the GPU with a collective (or, for a collective, with a kernel), and host time to issue
// it.
//
// The formulas are those of work_time.h and collectives.h. A
// collective that is resident holds as many SMs as it has channels, so products are counted in
// waves over what is left, and its traffic through device memory is taken from memory-bound
// kernels. Products of the same shape are looked up, not computed again: one CostModel serves many
// plans of one profile.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/schedule.h"
#include "sim/cost/collectives.h"
#include "sim/cost/work_time.h"
#include "sim/engine/engine.h"

namespace shardwright::sim {

/// For ranks that share a device: what collectives cost in its memory goes to `params`. Returns by
/// what sharing stretches a rank's copies (CollectiveGroup::copies_take_turns).
double in_device_memory(const profiles::Profile& profile, std::int64_t world_ranks,
                        profiles::CollectiveParams& params);

class CostModel {
 public:
  explicit CostModel(const profiles::Profile& profile);

  /// Fills `costs`, one for each operation of the schedule.
  void cost(const Schedule& schedule, std::vector<OpCost>& costs);

  /// The collective as NCCL would run it on this cluster in `group` of this schedule.
  CollectiveCost collective(const Schedule& schedule, OpKind kind, CommGroup group,
                            double bytes) const;

 private:
  struct Pair {
    double alone_s, contended_s;
  };
  /// Returns what a resident collective takes from kernels: the mean over all collectives of the
  /// step, weighted by time.
  Sharing cost_collectives(const Schedule& schedule, std::vector<OpCost>& costs) const;
  double product_s(std::int64_t m, std::int64_t n, std::int64_t k, int sms);
  Pair device_time(const Op& op, const Sharing& resident);
  /// The costs on the part of a device that a rank of the schedule has.
  void share_device(const Schedule& schedule);

  profiles::Profile profile_;
  KernelCosts kernels_;
  NodeNetwork network_;
  std::int64_t sharers_ = 1;
  std::unordered_map<ProductShape, double, ProductShapeHash> products_;
};

}  // namespace shardwright::sim
