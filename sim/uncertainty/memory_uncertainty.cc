// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/memory_uncertainty.h"

#include <algorithm>

#include "profiles/uncertainty/model_parallel_uncertainty.h"

namespace shardwright::sim {
namespace {

constexpr std::string_view kMeasured = "stack with measured memory";

}  // namespace

profiles::MemoryWidths memory_widths(const profiles::Profile& profile) {
  const double estimated = profiles::model_parallel_uncertainty().memory_half_width;
  if (profile.stack.memory == MemoryManager::kEstimatedAllocator && estimated > 0)
    return {estimated, estimated};
  const profiles::Uncertainty& known = profile.uncertainty;
  const auto measured = known.seen.find(kMeasured);
  const bool is_measured =
      profile.stack.memory == MemoryManager::kStatic ||
      (measured != known.seen.end() && std::find(measured->second.begin(), measured->second.end(),
                                                 profile.stack.family) != measured->second.end());
  return is_measured ? known.memory : known.memory_of_others;
}

}  // namespace shardwright::sim
