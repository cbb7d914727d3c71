// SPDX-License-Identifier: Apache-2.0
// What every operation of a schedule costs on a given profile: device time alone, device time while
// sharing the GPU with a collective (or, for a collective, with a kernel), and host time to issue
// it.
//
// What an operation costs alone says op_cost.h. A collective that is resident holds as many SMs as
// it has channels, so products are counted in waves over what is left, and its traffic through
// device memory is taken from memory-bound kernels. One CostModel serves many plans of one profile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/plan.h"
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

// What a step loses with every doubling of the GPUs beyond a node: ranks whose kernels are slower
// than the others', and a network that is shared. A rank that is simulated alone shows neither.
// Published series of one configuration on ever more nodes identify the loss
// (cost.contention.scale_loss) and how far it differs from machine to machine
// (profiles/uncertainty/uncertainty.h); what is in it is left open.

/// Doublings of the GPUs beyond a node.
inline double doublings_beyond_node(const Cluster& cluster, std::int64_t gpus) {
  if (gpus <= cluster.gpus_per_node) return 0;
  return std::log2(static_cast<double>(gpus) / static_cast<double>(cluster.gpus_per_node));
}

/// Time of a step over that of the simulated rank, at least 1. Replicas of several GPUs wait for
/// each other in every layer, and their published runs show no loss beyond that.
inline double scale_factor(const profiles::Profile& profile, const Plan& plan) {
  const ParallelSoftware& software = profile.stack.parallel;
  if (profile.stack.optimizer.bucketed) {
    const double nodes = std::ceil(static_cast<double>(plan.gpus) /
                                   static_cast<double>(profile.cluster.gpus_per_node));
    return 1 + software.step_jitter_per_doubling * std::log2(std::max(1.0, nodes));
  }
  if (plan.parallel.replica() > 1) return 1;
  return 1 + profile.cost.contention.values.scale_loss *
                 doublings_beyond_node(profile.cluster, plan.gpus);
}

}  // namespace shardwright::sim
