// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/scale_uncertainty.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

ScaleUncertainty load_scale_uncertainty() {
  ScaleUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "scale_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  uncertainty.half_width_per_doubling =
      root.require<double>("half_width_per_doubling", between(0.0, 1.0));
  uncertainty.unmeasured_factor = root.require<double>("unmeasured_factor", between(1.0, 10.0));
  for (const JsonReader& network : root.require_array("networks"))
    uncertainty.networks.push_back(network.value<std::string>());
  for (const JsonReader& machine : root.require_array("machines")) {
    const auto loss = machine.require<double>("loss", between(-1.0, 1.0));
    uncertainty.least_loss =
        uncertainty.machines == 0 ? loss : std::min(uncertainty.least_loss, loss);
    uncertainty.largest_loss =
        uncertainty.machines == 0 ? loss : std::max(uncertainty.largest_loss, loss);
    uncertainty.series += machine.require<std::int64_t>("series", at_least<std::int64_t>(1));
    ++uncertainty.machines;
  }
  return uncertainty;
}

}  // namespace

bool ScaleUncertainty::measured(const std::string& network) const {
  return std::find(networks.begin(), networks.end(), network) != networks.end();
}

double ScaleUncertainty::half_width(const std::string& network, double doublings) const {
  return doublings * half_width_per_doubling * (measured(network) ? 1 : unmeasured_factor);
}

const ScaleUncertainty& scale_uncertainty() {
  static const ScaleUncertainty uncertainty = load_scale_uncertainty();
  return uncertainty;
}

}  // namespace shardwright::profiles
