// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/energy_flags.h"

#include <fmt/core.h>

namespace shardwright::cli {

void EnergyFlags::declare(Command& command) {
  constexpr const char* kEnergy = "Energy";
  command
      .add("--pue", pue,
           "power of the building over that of its nodes (default: energy.json's, 1.2)", {1, 5})
      .group(kEnergy);
  command
      .add("--grid-kg", grid_kg_per_kwh,
           "kg of CO2 that the grid emits for a kWh (default: energy.json's, 0.48, of the world)",
           {0, 5})
      .group(kEnergy);
}

profiles::Energy EnergyFlags::energy(std::optional<double> limit_watts) const {
  profiles::Energy energy = profiles::load_energy();
  energy.limit_watts = limit_watts;
  energy.pue = pue.value_or(energy.pue);
  energy.grid_kg_per_kwh = grid_kg_per_kwh.value_or(energy.grid_kg_per_kwh);
  return energy;
}

}  // namespace shardwright::cli
