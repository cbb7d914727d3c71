// SPDX-License-Identifier: Apache-2.0
// The flags that say what electricity is where a run would be.
#pragma once

#include <optional>

#include "cli/flags/command_line.h"
#include "profiles/prices/energy.h"

namespace shardwright::cli {

struct EnergyFlags {
  std::optional<double> pue, grid_kg_per_kwh;

  void declare(Command& command);
  bool any() const { return pue || grid_kg_per_kwh; }
  /// What ships, with what was given.
  profiles::Energy energy(std::optional<double> limit_watts) const;
};

}  // namespace shardwright::cli
