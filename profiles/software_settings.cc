// SPDX-License-Identifier: Apache-2.0
#include "profiles/software_settings.h"

#include <map>
#include <string>
#include <string_view>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

using SettingsByFamily = std::map<std::string, SoftwareSettings, std::less<>>;

template <typename Enum>
std::vector<Enum> settings_of(const JsonReader& entry, std::string_view name) {
  std::vector<Enum> settings;
  for (const JsonReader& word : entry.require_array(name)) {
    const auto setting = parallel_word<Enum>(word.value<std::string>());
    if (!setting) entry.fail(name, words_of<Enum>());
    settings.push_back(*setting);
  }
  return settings;
}

SettingsByFamily load_settings() {
  const JsonFile file = JsonFile::load(data_dir() / "parallel_kernels.json");
  SettingsByFamily families;
  for (const JsonReader& entry : file.root().require_array("software_settings")) {
    SoftwareSettings settings;
    settings.tensor_overlaps = settings_of<TensorOverlap>(entry, "tp_overlap");
    settings.dispatchers = settings_of<Dispatcher>(entry, "dispatcher");
    settings.schedules = settings_of<PipelineKind>(entry, "pp_schedule");
    for (const JsonReader& family : entry.require_array("stacks")) {
      families[family.value<std::string>()] = settings;
    }
  }
  return families;
}

}  // namespace

const SoftwareSettings& software_settings(const Stack& stack) {
  static const SettingsByFamily families = load_settings();
  static const SoftwareSettings nothing;
  const auto at = families.find(stack.family);
  return at == families.end() ? nothing : at->second;
}

TensorOverlap usual_overlap(const Stack& stack, const Model& model) {
  if (model.is_mixture()) return TensorOverlap::kNone;
  return parallel_word<TensorOverlap>(stack.parallel.tp_overlap).value_or(TensorOverlap::kNone);
}

Dispatcher usual_dispatcher(const Stack& stack) {
  return parallel_word<Dispatcher>(stack.parallel.dispatcher).value_or(Dispatcher::kAllToAll);
}

}  // namespace shardwright::profiles
