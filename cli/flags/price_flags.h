// SPDX-License-Identifier: Apache-2.0
// What a GPU hour costs, where the user knows better than the cluster files: --price and --prices.
#pragma once

#include <optional>
#include <string>

#include "cli/flags/command_line.h"
#include "profiles/prices/energy.h"
#include "profiles/prices/price.h"
#include "tuner/size/offers.h"

namespace shardwright::cli {

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

}  // namespace shardwright::cli
