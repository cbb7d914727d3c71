// SPDX-License-Identifier: Apache-2.0
// What a step loses with every doubling of the GPUs beyond a node: ranks whose kernels are slower
// than the others', and a network that is shared. A rank that is simulated alone shows neither.
// Published series of one configuration on ever more nodes identify the loss, by network
// (cost.contention.scale_loss); what is in it is left open.
#pragma once

#include <cmath>

#include "profiles/profile.h"

namespace shardwright::sim {

/// Time of a step on `gpus` over that of the simulated rank, at least 1.
inline double scale_factor(const profiles::Profile& profile, std::int64_t gpus) {
  const std::int64_t per_node = profile.cluster.gpus_per_node;
  if (gpus <= per_node) return 1;
  const double doublings = std::log2(static_cast<double>(gpus) / static_cast<double>(per_node));
  return 1 + profile.cost.contention.values.scale_loss * doublings;
}

}  // namespace shardwright::sim
