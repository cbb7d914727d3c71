// SPDX-License-Identifier: Apache-2.0
// What `size` takes where nobody says: numbers of GPUs, the batch.
#include <algorithm>

#include "sim/core/rack.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

std::vector<std::int64_t> gpu_counts(const Cluster& cluster, std::int64_t most) {
  std::vector<std::int64_t> counts;
  const bool on = is_rack(cluster.gpus_per_node) && cluster.nics_per_node > 0;
  for (std::int64_t gpus = 1; (on || gpus < cluster.gpus_per_node) && gpus <= most; gpus *= 2)
    counts.push_back(gpus);
  if (on) return counts;
  for (std::int64_t gpus = cluster.gpus_per_node; gpus <= most; gpus *= 2) {
    counts.push_back(gpus);
    if (cluster.nics_per_node == 0) break;
  }
  return counts;
}

bool chooses_batch(const SizingJob& job) {
  return !job.fixed.global_batch && !job.fixed.grad_accum;
}

}  // namespace shardwright::tuner
