// SPDX-License-Identifier: Apache-2.0
// What a step loses with every doubling of the GPUs beyond a node: ranks whose kernels are slower
// than the others', and a network that is shared. A rank that is simulated alone shows neither.
// Published series of one configuration on ever more nodes identify the loss
// (cost.contention.scale_loss) and how far it differs from machine to machine
// (profiles/uncertainty/scale_uncertainty.h); what is in it is left open.
#pragma once

#include <algorithm>
#include <cmath>

#include "profiles/profile.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

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
