// SPDX-License-Identifier: Apache-2.0
#include "profiles/scale_doubt.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

ScaleDoubt load_scale_doubt() {
  ScaleDoubt doubt;
  const std::filesystem::path path = data_dir() / "fitted" / "scale_residuals.json";
  if (!std::filesystem::exists(path)) return doubt;
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  doubt.half_width_per_doubling =
      root.require<double>("half_width_per_doubling", between(0.0, 1.0));
  doubt.unmeasured_factor = root.require<double>("unmeasured_factor", between(1.0, 10.0));
  for (const JsonReader& network : root.require_array("networks"))
    doubt.networks.push_back(network.value<std::string>());
  for (const JsonReader& machine : root.require_array("machines")) {
    const auto loss = machine.require<double>("loss", between(-1.0, 1.0));
    doubt.least_loss = doubt.machines == 0 ? loss : std::min(doubt.least_loss, loss);
    doubt.largest_loss = doubt.machines == 0 ? loss : std::max(doubt.largest_loss, loss);
    doubt.series += machine.require<std::int64_t>("series", at_least<std::int64_t>(1));
    ++doubt.machines;
  }
  return doubt;
}

}  // namespace

bool ScaleDoubt::measured(const std::string& network) const {
  return std::find(networks.begin(), networks.end(), network) != networks.end();
}

double ScaleDoubt::half_width(const std::string& network, double doublings) const {
  return doublings * half_width_per_doubling * (measured(network) ? 1 : unmeasured_factor);
}

const ScaleDoubt& scale_doubt() {
  static const ScaleDoubt doubt = load_scale_doubt();
  return doubt;
}

}  // namespace shardwright::profiles
