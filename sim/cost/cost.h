// SPDX-License-Identifier: Apache-2.0
// What every operation of a schedule costs on a given profile: device time alone, device time while
// sharing the GPU with a collective (or, for a collective, with a kernel), and host time to issue
// it.
//
// What an operation costs alone says op_cost.h. A collective that is resident holds as many SMs as
// it has channels, so products are counted in waves over what is left, and its traffic through
// device memory is taken from memory-bound kernels. One CostModel serves many plans of one profile.
#pragma once

#include <cstdint>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/schedule.h"
#include "sim/cost/collectives.h"
#include "sim/cost/op_cost.h"
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
  /// The least that they cost in any step of such units: kernels share the device with the units'
  /// own collectives alone.
  void cost_of_units(const Schedule& schedule, std::vector<OpCost>& costs);

  /// What one operation of the schedule that was costed last takes.
  OpCosts& operations() { return ops_; }

  /// The collective as NCCL would run it on this cluster in `group` of this schedule.
  CollectiveCost collective(const Schedule& schedule, OpKind kind, CommGroup group,
                            double bytes) const;

 private:
  void cost_beside(const Schedule& schedule, bool units_alone, std::vector<OpCost>& costs);
  struct Pair {
    double alone_s, contended_s;
  };
  /// A collective of a strategy or of a unit's own, once.
  CollectiveCost collective(const Schedule& schedule, const Op& op) const;
  /// Returns what a resident collective takes from kernels: the mean over all collectives of the
  /// step, weighted by time.
  Sharing cost_collectives(const Schedule& schedule, std::vector<OpCost>& costs) const;
  Pair device_time(const Op& op, const Sharing& resident);

  OpCosts ops_;
  bool registered_ = false;  // what a strategy says of SMs that its collectives hold is true
  double host_turns_ = 1;    // by what ranks that share a device stretch the host's work
};

}  // namespace shardwright::sim
