// SPDX-License-Identifier: Apache-2.0
#include "profiles/prices/energy.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"

namespace shardwright::profiles {

namespace {

double value_of(const JsonReader& entry, double least, double most) {
  entry.reject_unknown_keys({"value", "unit", "source", "confidence", "date"});
  entry.require<std::string>("source");
  return entry.require<double>("value", NumberRange<double>(least, most));
}

}  // namespace

std::optional<double> Energy::drawn_watts(const std::string& gpu) const {
  const auto at = watts.find(gpu);
  if (at == watts.end()) return std::nullopt;
  return std::min(at->second, limit_watts.value_or(at->second));
}

std::optional<double> Energy::kwh(const std::string& gpu, double gpu_hours) const {
  const auto board = watts.find(gpu);
  const std::optional<double> drawn = drawn_watts(gpu);
  if (!drawn) return std::nullopt;
  // The host, the switches and the fans beside the GPUs draw what they draw.
  const double node = *drawn + (rest_of_node - 1) * board->second;
  return gpu_hours * node / 1e3 * pue;
}

Energy load_energy(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.energy/1.0"});
  root.reject_unknown_keys({"schema", "description", "rest_of_node", "pue", "grid_kg_per_kwh",
                            "standing_share", "clock_exponent", "watts"});
  Energy energy;
  energy.rest_of_node = value_of(root.require_object("rest_of_node"), 1, 5);
  energy.pue = value_of(root.require_object("pue"), 1, 5);
  energy.grid_kg_per_kwh = value_of(root.require_object("grid_kg_per_kwh"), 0, 5);
  energy.standing_share = value_of(root.require_object("standing_share"), 0, 0.9);
  energy.clock_exponent = value_of(root.require_object("clock_exponent"), 1, 5);
  const JsonReader watts = root.require_object("watts");
  for (const std::string& gpu : watts.keys())
    energy.watts[gpu] = value_of(watts.require_object(gpu), 1, 1e5);
  return energy;
}

Energy load_energy() {
  return load_energy(data_dir() / "energy.json");
}

namespace {

/// Of board power, below which no driver lets the limit be set.
constexpr double kLeastLimit = 0.25;

}  // namespace

double clock_share(const Energy& energy, const std::string& gpu, double limit_watts) {
  const auto at = energy.watts.find(gpu);
  if (at == energy.watts.end()) {
    throw Error(fmt::format("--power-limit-watts is {:g}, but the board power of {} is not known",
                            limit_watts, gpu));
  }
  const double board = at->second;
  const double least = kLeastLimit * board;
  if (!(limit_watts >= least) || !(limit_watts <= board)) {
    throw Error(
        fmt::format("--power-limit-watts is {:g}, expected {:g} to {:g}, the board power "
                    "of {}",
                    limit_watts, least, board, gpu));
  }
  const double standing = energy.standing_share * board;
  const double dynamic = (limit_watts - standing) / (board - standing);
  return portable_exp(portable_log(dynamic) / energy.clock_exponent);
}

std::vector<std::string> power_limit_overrides(const Profile& profile, const Energy& energy,
                                               double limit_watts) {
  const double clocks = clock_share(energy, profile.cluster.gpu.id, limit_watts);
  std::vector<std::string> overrides;
  const auto lower = [&](const std::string& path, double value) {
    overrides.push_back(fmt::format("{}={}", path, value * clocks));
  };
  lower("cost.gemm.sustained_factor", profile.cost.gemm.values.sustained_factor);
  for (const auto& [kernel, attention] : profile.cost.attention) {
    lower(fmt::format("cost.attention.{}.forward_flops", kernel), attention.values.forward_flops);
    lower(fmt::format("cost.attention.{}.backward_flops", kernel), attention.values.backward_flops);
  }
  return overrides;
}

}  // namespace shardwright::profiles
