// SPDX-License-Identifier: Apache-2.0
// The flags that only `size` has: the goal, what is on offer, and what failures cost.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags/command_line.h"
#include "cli/flags/plan_flags.h"
#include "profiles/prices/price.h"
#include "tuner/size/sizing.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::cli {

// What a GPU hour costs, where the user knows better than the cluster files: --price and --prices.

class Command;

struct PriceFlags {
  tuner::Prices given;
  std::optional<std::string> file;

  /// Binds the flags to this object, which must stay where it is; help lists them under `group`.
  void declare(Command& command, const std::string& group);
  bool any() const { return !given.empty() || file; }
  /// What --prices names; nothing without it. Throws Error.
  profiles::PriceFile imported() const;
};

/// Adds the NAME=USD of one --price. Throws Error when it is none.
void add_price(tuner::Prices& prices, const std::string& text);

// The flags that say what electricity is where a run would be.

struct EnergyFlags {
  std::optional<double> pue, grid_kg_per_kwh;

  void declare(Command& command);
  bool any() const { return pue || grid_kg_per_kwh; }
  /// What ships, with what was given.
  profiles::Energy energy(std::optional<double> limit_watts) const;
};

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
