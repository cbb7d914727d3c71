// SPDX-License-Identifier: Apache-2.0
#include "sim/core/rack.h"

#include <algorithm>
#include <numeric>

namespace shardwright {
namespace {

constexpr std::int64_t kMostGpusOfABoard = 16;

/// The most whole units, at least half a rack, that divide all GPUs; 0: there is no such number.
std::int64_t equal_parts(std::int64_t gpus, std::int64_t rack, std::int64_t unit) {
  for (std::int64_t part = rack / unit * unit; 2 * part >= rack && part > 0; part -= unit) {
    if (gpus % part == 0) return part;
  }
  return 0;
}

std::int64_t whole_trays(std::int64_t gpus, std::int64_t racks) {
  const std::int64_t each = (gpus - 1) / racks + 1;
  return ((each - 1) / kGpusPerTray + 1) * kGpusPerTray;
}

}  // namespace

bool is_rack(std::int64_t nvlink_gpus) {
  return nvlink_gpus > kMostGpusOfABoard;
}

std::int64_t nvlink_gpus(const Cluster& cluster) {
  return std::max(cluster.nvlink_domain, cluster.gpus_per_node);
}

std::int64_t gpus_of_each_rack(std::int64_t gpus, std::int64_t rack, std::int64_t unit) {
  if (gpus <= rack) return gpus;
  const std::int64_t whole = std::lcm(unit, kGpusPerTray);
  for (const std::int64_t step : {whole, kGpusPerTray}) {
    if (const std::int64_t part = equal_parts(gpus, rack, step); part > 0) return part;
  }
  return std::min(rack, whole_trays(gpus, (gpus - 1) / rack + 1));
}

Cluster filled(Cluster cluster, std::int64_t gpus) {
  const std::int64_t rack = cluster.gpus_per_node;
  if (!is_rack(rack) || !cluster.nvlink || gpus <= rack) return cluster;
  const std::int64_t part = gpus_of_each_rack(gpus, rack);
  cluster.nvlink_domain = std::max(cluster.nvlink_domain, rack);
  cluster.nics_per_node = cluster.nics_per_node * part / rack;
  cluster.gpus_per_node = part;
  return cluster;
}

}  // namespace shardwright
