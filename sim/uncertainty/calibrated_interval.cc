// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/calibrated_interval.h"

#include <algorithm>
#include <array>
#include <utility>

namespace shardwright::sim {
namespace {

using profiles::CostGroup;

std::size_t place(CostGroup group) {
  return static_cast<std::size_t>(group);
}

}  // namespace

double calibrated_half_width(const profiles::Profile& profile, const KernelTimes& kernels,
                             const StepShares& shares, double published) {
  const auto& widths = profile.calibrated_half_width;
  const bool any = std::any_of(widths.begin(), widths.end(), [](double w) { return w > 0; });
  if (!any || !(shares.total_s > 0)) return published;
  const auto width_of = [&](CostGroup group) {
    const double width = widths[place(group)];
    return width > 0 ? width : published;
  };
  const std::array<std::pair<CostGroup, Nanoseconds>, 3> groups = {
      {{CostGroup::kProducts, kernels.gemm_ns},
       {CostGroup::kAttention, kernels.attention_ns},
       {CostGroup::kMemory, kernels.memory_ns}}};
  double in_all = 0, weighted = 0;
  for (const auto& [group, time_ns] : groups) {
    in_all += static_cast<double>(time_ns);
    weighted += static_cast<double>(time_ns) * width_of(group);
  }
  const double exposed = std::clamp(shares.exposed_s / shares.total_s, 0.0, 1.0);
  const double host = std::clamp(shares.host_s / shares.total_s, 0.0, 1.0 - exposed);
  const double of_kernels = in_all > 0 ? weighted / in_all : published;
  return exposed * width_of(CostGroup::kCollectives) + host * width_of(CostGroup::kHost) +
         (1 - exposed - host) * of_kernels;
}

}  // namespace shardwright::sim
