// SPDX-License-Identifier: Apache-2.0
#include "profiles/training_load.h"

#include <map>
#include <string>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

std::map<std::string, TrainingLoad, std::less<>> load_training_loads() {
  const JsonFile file = JsonFile::load(data_dir() / "parallel_kernels.json");
  std::map<std::string, TrainingLoad, std::less<>> loads;
  for (const JsonReader& entry : file.root().require_array("training_load")) {
    loads[entry.require<std::string>("gpu")] = {
        entry.require<double>("product_share", between(0.1, 2.0)),
        entry.require<double>("stream_share", between(0.1, 2.0))};
  }
  return loads;
}

}  // namespace

TrainingLoad training_load(std::string_view gpu) {
  static const auto loads = load_training_loads();
  const auto at = loads.find(gpu);
  return at == loads.end() ? TrainingLoad{} : at->second;
}

}  // namespace shardwright::profiles
