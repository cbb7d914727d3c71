// SPDX-License-Identifier: Apache-2.0
#include "profiles/prices/energy.h"

#include <algorithm>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

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

}  // namespace shardwright::profiles
