// SPDX-License-Identifier: Apache-2.0
#include "cli/config/setting.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/json_file.h"
#include "sim/core/read_file.h"

namespace shardwright::cli {
namespace settings_language {
namespace {

void flatten_json(const nlohmann::json& node, const std::string& key, const std::string& name,
                  Settings& settings) {
  if (node.is_object()) {
    for (const auto& [member, value] : node.items())
      flatten_json(value, key.empty() ? member : key + "." + member, name, settings);
  } else if (node.is_array()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten_json(node[i], fmt::format("{}[{}]", key, i), name, settings);
  } else {
    add_setting(settings, key,
                node.is_string()
                    ? node.get<std::string>()
                    : node.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                name);
  }
}

}  // namespace

void add_setting(Settings& settings, std::string key, std::string value, const std::string& name) {
  if (settings.size() >= kMostSettings)
    throw Error(fmt::format("{}: holds more than {} settings", name, kMostSettings));
  settings.push_back({std::move(key), std::move(value)});
}

Settings parse_json(std::string_view text, const std::string& name) {
  const JsonFile file = JsonFile::parse(text, name, {kMostSettingsBytes, 64});
  Settings settings;
  flatten_json(file.root().raw(), "", name, settings);
  return settings;
}

}  // namespace settings_language

SettingsLanguage language_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".json") return SettingsLanguage::kJson;
  if (ending == ".yaml" || ending == ".yml") return SettingsLanguage::kYaml;
  if (ending == ".toml") return SettingsLanguage::kToml;
  if (ending == ".py") return SettingsLanguage::kPython;
  return SettingsLanguage::kShell;
}

Settings parse_settings(SettingsLanguage language, std::string_view text, const std::string& name,
                        const std::string& function) {
  if (!reads(language)) {
    throw Error(fmt::format("{}: this build does not read {}; build with {} installed", name,
                            language == SettingsLanguage::kYaml ? "YAML" : "TOML",
                            language == SettingsLanguage::kYaml ? "libyaml-cpp-dev"
                                                                : "libtomlplusplus-dev"),
                ExitCode::kMissingDevice);
  }
  switch (language) {
    case SettingsLanguage::kJson:
      return settings_language::parse_json(text, name);
    case SettingsLanguage::kYaml:
      return settings_language::parse_yaml(text, name);
    case SettingsLanguage::kToml:
      return settings_language::parse_toml(text, name);
    case SettingsLanguage::kPython:
      return settings_language::parse_python(text, name, function);
    case SettingsLanguage::kShell:
      return settings_language::parse_shell(text, name);
  }
  return {};
}

Settings read_settings(const std::filesystem::path& path) {
  // "config_registry.py:llama3_8b": one function of a module.
  std::string name = path.string(), function;
  const std::size_t colon = name.rfind(".py:");
  if (colon != name.npos) {
    function = name.substr(colon + 4);
    name.resize(colon + 3);
  }
  const std::string text = read_file(name, kMostSettingsBytes);
  return parse_settings(language_of(name), text, name, function);
}

}  // namespace shardwright::cli
