// SPDX-License-Identifier: Apache-2.0
// A GPU whose board may draw fewer watts than its data sheet says (nvidia-smi --power-limit): what
// its clocks lose, and with them GEMMs and attention. Memory and links keep their rates.
//
// Under training load a GPU is held at its limit: dynamic power (the limit less what the board
// takes standing still) grows as the clock to an exponent, both in energy.json.
#pragma once

#include <string>
#include <vector>

#include "profiles/prices/energy.h"
#include "profiles/profile.h"

namespace shardwright::profiles {

/// Clocks at `limit_watts` over those at the board power of `gpu`, at most 1. Throws Error where
/// the GPU's power is not known, or the limit is above it or too low to hold.
double clock_share(const Energy& energy, const std::string& gpu, double limit_watts);

/// Overrides (--set) of the profile that lower its rates that follow the clocks.
std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts);

}  // namespace shardwright::profiles
