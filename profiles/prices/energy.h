// SPDX-License-Identifier: Apache-2.0
// Electricity of a training beside its dollars: profiles/data/energy.json, each value with its
// source and date.
//
//   kWh = GPU hours x board power x rest of the node x PUE     kg CO2 = kWh x what the grid emits
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/profile.h"

namespace shardwright::profiles {

struct Energy {
  double rest_of_node = 1;  // power of a node over that of its GPUs
  double pue = 1;           // of the building over that of its nodes
  double grid_kg_per_kwh = 0;
  double standing_share = 0;                         // of board power, with clocks standing still
  double clock_exponent = 1;                         // power beyond it grows as the clock to this
  std::optional<double> limit_watts;                 // of each board, where its power is capped
  std::map<std::string, double, std::less<>> watts;  // board power, by GPU

  /// What a board draws under training load: its power, or the limit where that is lower.
  std::optional<double> drawn_watts(const std::string& gpu) const;
  /// Of `gpu_hours` of a GPU; none where its power is not known.
  std::optional<double> kwh(const std::string& gpu, double gpu_hours) const;
};

/// Throws Error naming file, path, value and what is accepted.
Energy load_energy(const std::filesystem::path& file);
/// The shipped file, profiles/data/energy.json.
Energy load_energy();

// A GPU whose board may draw fewer watts than its data sheet says (nvidia-smi --power-limit): what
// its clocks lose, and with them GEMMs and attention. Memory and links keep their rates.
//
// Under training load a GPU is held at its limit: dynamic power (the limit less what the board
// takes standing still) grows as the clock to an exponent, both in energy.json.

/// Clocks at `limit_watts` over those at the board power of `gpu`, at most 1. Throws Error where
/// the GPU's power is not known, or the limit is above it or too low to hold.
double clock_share(const Energy& energy, const std::string& gpu, double limit_watts);

/// Overrides (--set) of the profile that lower its rates that follow the clocks.
std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts);

}  // namespace shardwright::profiles
