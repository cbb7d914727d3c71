// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/calibrated_interval.h"

#include <algorithm>
#include <array>

namespace shardwright::sim {
namespace {

using profiles::CostGroup;

std::size_t place(CostGroup group) {
  return static_cast<std::size_t>(group);
}

/// Kernel time of the schedule by group.
std::array<double, profiles::kCostGroups> kernel_times(const Schedule& schedule,
                                                       const std::vector<OpCost>& costs) {
  std::array<double, profiles::kCostGroups> times{};
  for (const Section& section : schedule.sections) {
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = schedule.blocks[b];
      const double runs = static_cast<double>(block.repeats) * section.repeats;
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
        const double time = runs * static_cast<double>(costs[i].alone_ns);
        switch (schedule.ops[i].work.kind) {
          case WorkKind::kGemm:
            times[place(CostGroup::kProducts)] += time;
            break;
          case WorkKind::kAttention:
            times[place(CostGroup::kAttention)] += time;
            break;
          case WorkKind::kMemory:
            times[place(CostGroup::kMemory)] += time;
            break;
          default:
            break;
        }
      }
    }
  }
  return times;
}

}  // namespace

double calibrated_half_width(const profiles::Profile& profile, const Schedule& schedule,
                             const std::vector<OpCost>& costs, const StepShares& shares,
                             double published) {
  const auto& widths = profile.calibrated_half_width;
  const bool any = std::any_of(widths.begin(), widths.end(), [](double w) { return w > 0; });
  if (!any || !(shares.total_s > 0)) return published;
  const auto width_of = [&](CostGroup group) {
    const double width = widths[place(group)];
    return width > 0 ? width : published;
  };
  const auto times = kernel_times(schedule, costs);
  double kernels = 0, weighted = 0;
  for (const CostGroup group : {CostGroup::kProducts, CostGroup::kAttention, CostGroup::kMemory}) {
    kernels += times[place(group)];
    weighted += times[place(group)] * width_of(group);
  }
  const double exposed = std::clamp(shares.exposed_s / shares.total_s, 0.0, 1.0);
  const double host = std::clamp(shares.host_s / shares.total_s, 0.0, 1.0 - exposed);
  const double of_kernels = kernels > 0 ? weighted / kernels : published;
  return exposed * width_of(CostGroup::kCollectives) + host * width_of(CostGroup::kHost) +
         (1 - exposed - host) * of_kernels;
}

}  // namespace shardwright::sim
