// SPDX-License-Identifier: Apache-2.0
#include "profiles/energy.h"

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

double value_of(const JsonReader& entry, double least, double most) {
  entry.reject_unknown_keys({"value", "unit", "source", "confidence", "date"});
  entry.require<std::string>("source");
  return entry.require<double>("value", NumberRange<double>(least, most));
}

}  // namespace

std::optional<double> Energy::kwh(const std::string& gpu, double gpu_hours) const {
  const auto at = watts.find(gpu);
  if (at == watts.end()) return std::nullopt;
  return gpu_hours * at->second / 1e3 * rest_of_node * pue;
}

Energy load_energy(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.energy/1.0"});
  root.reject_unknown_keys(
      {"schema", "description", "rest_of_node", "pue", "grid_kg_per_kwh", "watts"});
  Energy energy;
  energy.rest_of_node = value_of(root.require_object("rest_of_node"), 1, 5);
  energy.pue = value_of(root.require_object("pue"), 1, 5);
  energy.grid_kg_per_kwh = value_of(root.require_object("grid_kg_per_kwh"), 0, 5);
  const JsonReader watts = root.require_object("watts");
  for (const std::string& gpu : watts.keys())
    energy.watts[gpu] = value_of(watts.require_object(gpu), 1, 1e5);
  return energy;
}

Energy load_energy() {
  return load_energy(data_dir() / "energy.json");
}

}  // namespace shardwright::profiles
