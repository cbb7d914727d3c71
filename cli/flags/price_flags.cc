// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/price_flags.h"

#include <fmt/core.h>

#include "cli/flags/command_line.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {

void add_price(tuner::Prices& prices, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("--price is '{}', expected NAME=USD, for example h100-80g=2.10", text),
                ExitCode::kUsage);
  }
  const std::string amount = text.substr(equals == text.npos ? 0 : equals + 1);
  const std::optional<double> usd = parse_double(plain_number(amount).value_or(amount));
  if (!usd || *usd <= 0 || *usd > 1e6) {
    throw Error(
        fmt::format("--price is '{}', but a GPU hour must cost more than 0 and at most "
                    "1,000,000 USD",
                    text));
  }
  const std::string name = text.substr(0, equals);
  if (!prices.emplace(name, *usd).second)
    throw Error(fmt::format("--price is given twice for '{}', expected once", name));
}

void PriceFlags::declare(Command& command, const std::string& group) {
  command
      .add_repeated(
          "--price", [this](const std::string& text) { add_price(given, text); },
          "US dollars per GPU hour of a cluster or a GPU; repeatable (default: what offers of the "
          "kind ask, by the cluster files, with date and source)")
      .type_name("NAME=USD")
      .group(group);
  command
      .add("--prices", file,
           "prices that `prices import` wrote; they count before those of the cluster files")
      .type_name("FILE")
      .group(group);
}

profiles::PriceFile PriceFlags::imported() const {
  return file ? profiles::load_price_file(*file) : profiles::PriceFile();
}

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
