// SPDX-License-Identifier: Apache-2.0
// The settings in a Python module, by what its functions come to (python_values.h):
//
//   from torchtitan.models.llama3.config_registry import llama3_8b as flavor     module, config
//   def llama3_8b():
//       config = flavor()
//       config.training.seq_len = 4096                  training.seq_len
//       config.activation_checkpoint = FullAC.Config()  activation_checkpoint: FullAC.Config()
//       return Trainer.Config(
//           model_spec=model_registry("8B"),            model_spec: model_registry(8B)
//           training=TrainingConfig(seq_len=4096))      training.seq_len
//
// What a function returns, or sets attributes of, is the whole config. A call is the value of its
// key, with its first argument where that is plain, and its keyword arguments are keys below it.
// Of scripts that import Unsloth all that calls outside of functions are given counts.
// "begins_with" names the function of another module that a config begins from, where that module
// is not at hand; a key with "?" is set only if what its value says holds.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/config/python_values.h"
#include "cli/config/setting.h"
#include "cli/config/setting_bounds.h"
#include "sim/core/base/error.h"

namespace shardwright::cli::settings_language {
namespace {

using Is = PythonValue::Kind;

std::string below(const std::string& key, const std::string& word) {
  return key.empty() ? word : key + "." + word;
}

void flatten(const PythonValue& value, const std::string& key, const std::string& name, int depth,
             Visits& visits, Settings& settings) {
  visits.enter(key, depth);
  if (value.kind == Is::kList && !key.empty()) {
    for (std::size_t i = 0; i < value.items.size(); ++i)
      flatten(*value.items[i], fmt::format("{}[{}]", key, i), name, depth + 1, visits, settings);
    return;
  }
  if (!key.empty() && !value.text.empty()) add_setting(settings, key, value.text, name);
  for (const auto& [word, field] : value.fields)
    flatten(*field, below(key, word), name, depth + 1, visits, settings);
  for (const PythonValue::Perhaps& one : value.perhaps) {
    add_setting(settings, "?" + below(key, one.key),
                fmt::format("{} if {}", one.value, one.condition), name);
  }
}

Settings settings_of(const std::vector<const PythonValue*>& values, const std::string& name) {
  Settings settings;
  Visits visits(name);
  for (const PythonValue* value : values) {
    if (!value->begins.empty()) add_setting(settings, "begins_with", value->begins, name);
    flatten(*value, "", name, 0, visits, settings);
  }
  return settings;
}

/// "torchtitan.models.llama3.config_registry": the family, as the command line of torchtitan has
/// it.
std::string family_of(std::string_view module) {
  constexpr std::string_view kRegistry = ".config_registry";
  if (!module.ends_with(kRegistry)) return "";
  module.remove_suffix(kRegistry.size());
  return std::string(module.substr(module.rfind('.') + 1));
}

/// Whose config it is that a torchtitan module changes, by its import or by where it lies.
void add_family(const PythonEvaluator& module, const std::filesystem::path& folder,
                const std::string& name, Settings& settings) {
  if (!folder.empty() && name.ends_with("config_registry.py")) {
    add_setting(settings, "module", folder.filename().string(), name);
    return;
  }
  for (const PythonImport& one : module.imports()) {
    const std::string family = family_of(one.module);
    if (family.empty()) continue;
    add_setting(settings, "module", family, name);
    add_setting(settings, "config", std::string(one.name), name);
    return;
  }
}

}  // namespace

Settings parse_python(std::string_view text, const std::string& name, const std::string& function,
                      const std::filesystem::path& folder) {
  PythonEvaluator module(name, folder);
  const std::vector<std::string> functions = module.read(text);
  Settings settings;
  // What a script of Unsloth's calls is given: its functions prepare data.
  const std::vector<PythonImport> imports = module.imports();
  const bool calls = std::any_of(imports.begin(), imports.end(),
                                 [](const PythonImport& one) { return one.module == "unsloth"; });
  if (calls && function.empty()) return settings_of(module.outside(true), name);
  add_family(module, folder, name, settings);
  std::vector<std::string> set_something;
  Settings chosen;
  for (const std::string& one : functions) {
    if (!function.empty() && one != function) continue;
    Settings found = settings_of(module.call(one), name);
    if (found.empty()) continue;
    set_something.push_back(one);
    chosen = std::move(found);
  }
  if (!function.empty() && set_something.empty()) {
    // Another name of a function of a module beside it.
    chosen = settings_of(module.call(function), name);
    if (!chosen.empty()) set_something.push_back(function);
  }
  if (!function.empty() && set_something.empty()) {
    std::string all;
    for (const std::string& one : functions) {
      if (!settings_of(module.call(one), name).empty()) all += (all.empty() ? "" : ", ") + one;
    }
    throw Error(fmt::format("{}: has no function {} that sets anything, expected one of {}", name,
                            function, all.empty() ? "none" : all));
  }
  if (function.empty() && set_something.size() > 1) {
    std::string all;
    for (const std::string& one : set_something) all += (all.empty() ? "" : ", ") + one;
    throw Error(
        fmt::format("{}: sets things in several functions, expected one to be named as in "
                    "{}:{} (there are {})",
                    name, name, set_something[0], all));
  }
  const Settings outside = settings_of(module.outside(set_something.empty()), name);
  settings.insert(settings.end(), outside.begin(), outside.end());
  settings.insert(settings.end(), chosen.begin(), chosen.end());
  return settings;
}

}  // namespace shardwright::cli::settings_language
