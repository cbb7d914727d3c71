// SPDX-License-Identifier: Apache-2.0
// The flags that only `size` has: the goal, what is on offer, and what failures cost.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "cli/flags/price_flags.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::cli {

struct SizeFlags {
  PlanFlags plan;
  std::optional<double> tokens;
  tuner::Goal goal;
  std::optional<std::string> clusters;
  std::optional<std::int64_t> max_gpus;
  std::optional<std::int64_t> global_batch;
  PriceFlags prices;
  profiles::PriceKind price_kind = profiles::PriceKind::kOnDemand;
  std::optional<std::array<Strategy, 2>> compare;
  std::optional<double> mtbf_hours, preemption_hours, restart_s, checkpoint_s;
  EnergyFlags energy;

  /// Binds the flags to this object, which must stay where it is.
  void declare(Command& command);
};

/// Of --cluster or --clusters. Throws Error when both are given, or one cluster twice.
std::vector<std::string> cluster_names(const SizeFlags& flags);

}  // namespace shardwright::cli
