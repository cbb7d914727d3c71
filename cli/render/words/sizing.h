// SPDX-License-Identifier: Apache-2.0
// Electricity and CO2 of a run, in a sentence and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiles/prices/price.h"

namespace shardwright::cli {

std::string energy_words(const profiles::Energy& energy, const std::string& gpu, double kwh);

/// {"kwh", "kg_co2", "watts"}; null where the GPU's power is not known.
nlohmann::ordered_json energy_json(const profiles::Energy& energy, const std::string& gpu,
                                   double gpu_hours);

}  // namespace shardwright::cli
