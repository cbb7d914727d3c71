// SPDX-License-Identifier: Apache-2.0
#include "profiles/gpu_costs_of.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "sim/core/base/error.h"

namespace shardwright::profiles {

GpuCost cost_of(const GpuFile& gpu, const GpuCosts& costs) {
  if (!costs.gpus.contains(gpu.cost_as)) {
    std::vector<std::string> known;
    for (const auto& [id, cost] : costs.gpus) known.push_back(id);
    throw Error(fmt::format(
        "gpu '{}' has no cost parameters of its own; its file needs a \"cost_as\" that names the "
        "most similar of those that have: {}",
        gpu.gpu.id, fmt::join(known, ", ")));
  }
  return costs.at(gpu.cost_as);
}

}  // namespace shardwright::profiles
