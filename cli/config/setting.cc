// SPDX-License-Identifier: Apache-2.0
#include "cli/config/setting.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {
namespace settings_language {
namespace {

constexpr std::size_t kMostBranches = 5 * kMostSettings;

void flatten_json(const nlohmann::json& node, const std::string& key, const std::string& name,
                  int depth, Visits& visits, Settings& settings) {
  visits.enter(key, depth);
  if (node.is_object()) {
    for (const auto& [member, value] : node.items()) {
      flatten_json(value, key_below(key, member), name, depth + 1, visits, settings);
    }
  } else if (node.is_array()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten_json(node[i], fmt::format("{}[{}]", key, i), name, depth + 1, visits, settings);
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
  check_key(key, name);
  if (value.size() > kLongestValue) value.resize(kLongestValue);
  settings.push_back({std::move(key), std::move(value)});
}

std::string key_below(const std::string& key, std::string_view member) {
  return key.empty() ? std::string(member) : fmt::format("{}.{}", key, member);
}

void check_key(const std::string& key, const std::string& name) {
  if (key.size() > kLongestKey) {
    throw Error(fmt::format("{}: the key {}... has {} bytes, expected at most {}", name,
                            key.substr(0, 40), key.size(), kLongestKey));
  }
}

void Visits::enter(const std::string& key, int depth) {
  check_key(key, name_);
  if (depth > kDeepestSetting) {
    throw Error(fmt::format("{}: nests too deeply at {}...", name_, key.substr(0, 40)));
  }
  if (++count_ > kMostBranches) {
    throw Error(fmt::format("{}: holds more than {} maps, lists and values", name_, kMostBranches));
  }
}

Settings parse_json(std::string_view text, const std::string& name) {
  const JsonFile file = JsonFile::parse(text, name, {kMostSettingsBytes, kDeepestSetting});
  Settings settings;
  Visits visits(name);
  flatten_json(file.root().raw(), "", name, 0, visits, settings);
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
                        [[maybe_unused]] const std::string& function,
                        [[maybe_unused]] const std::filesystem::path& folder) {
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
#ifdef SHARDWRIGHT_HAS_PYTHON
      return settings_language::parse_python(text, name, function, folder);
#else
      throw Error(fmt::format("{}: this page starts no processes, and a .py is read by Python; "
                              "expected YAML, TOML, JSON or flags here, or the installed program",
                              name),
                  ExitCode::kMissingDevice);
#endif
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
  const std::filesystem::path folder = std::filesystem::absolute(name).parent_path();
  return parse_settings(language_of(name), text, name, function, folder);
}

}  // namespace shardwright::cli
