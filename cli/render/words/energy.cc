// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/energy.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"
#include "profiles/prices/energy.h"

namespace shardwright::cli {

std::string energy_words(const profiles::Energy& energy, const std::string& gpu, double kwh) {
  const double drawn = energy.drawn_watts(gpu).value_or(0);
  const double board = energy.watts.find(gpu)->second;
  std::string power = fmt::format("{:g} W a board", drawn);
  if (drawn < board) {
    power = fmt::format("{:g} of {:g} W a board, at {} of its clocks", drawn, board,
                        percent(profiles::clock_share(energy, gpu, drawn), 0));
  }
  const auto amount = [](double thousand) {
    return thousand < 10 ? fmt::format("{:.3g}", thousand) : thousands(thousand);
  };
  return fmt::format(
      "That is about {} MWh ({}, {:g} times board power for the node, PUE {:g}) and {} t of CO2 "
      "at {:g} kg a kWh.",
      amount(kwh / 1e3), power, energy.rest_of_node, energy.pue,
      amount(kwh * energy.grid_kg_per_kwh / 1e3), energy.grid_kg_per_kwh);
}

nlohmann::ordered_json energy_json(const profiles::Energy& energy, const std::string& gpu,
                                   double gpu_hours) {
  const auto kwh = energy.kwh(gpu, gpu_hours);
  if (!kwh) return nullptr;
  return {{"kwh", *kwh},
          {"kg_co2", *kwh * energy.grid_kg_per_kwh},
          {"watts", *energy.drawn_watts(gpu)}};
}

}  // namespace shardwright::cli
