// SPDX-License-Identifier: Apache-2.0
// YAML by yaml-cpp. Aliases are expanded, which the number of branches bounds.
#include "cli/config/setting.h"

#ifdef SHARDWRIGHT_HAS_YAML
#include <fmt/core.h>
#include <yaml-cpp/yaml.h>

#include "sim/core/base/error.h"
#endif

namespace shardwright::cli::settings_language {

#ifdef SHARDWRIGHT_HAS_YAML
namespace {

/// "500_000" is a number to PyYAML, unless it is quoted.
std::string scalar(const YAML::Node& node) {
  std::string text = node.Scalar();
  const bool number = node.Tag() == "?" && !text.empty() && !text.starts_with('_') &&
                      text.find_first_not_of("0123456789_") == text.npos;
  if (number) std::erase(text, '_');
  return text;
}

void flatten_yaml(const YAML::Node& node, const std::string& key, const std::string& name,
                  int depth, Visits& visits, Settings& settings) {
  visits.enter(key, depth);
  if (node.IsMap()) {
    // What is merged in stands first, so that the map's own keys win.
    const YAML::Node merged = node["<<"];
    if (merged && merged.IsMap()) {
      flatten_yaml(merged, key, name, depth + 1, visits, settings);
    } else if (merged && merged.IsSequence()) {
      for (std::size_t i = merged.size(); i-- > 0;) {
        if (merged[i].IsMap()) flatten_yaml(merged[i], key, name, depth + 1, visits, settings);
      }
    }
    for (const auto& member : node) {
      const std::string word = member.first.IsScalar() ? member.first.Scalar() : "?";
      if (word == "<<") continue;
      flatten_yaml(member.second, key_below(key, word), name, depth + 1, visits, settings);
    }
  } else if (node.IsSequence()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten_yaml(node[i], fmt::format("{}[{}]", key, i), name, depth + 1, visits, settings);
  } else {
    add_setting(settings, key, node.IsScalar() ? scalar(node) : "null", name);
  }
}

}  // namespace

Settings parse_yaml(std::string_view text, const std::string& name) {
  Settings settings;
  Visits visits(name);
  try {
    flatten_yaml(YAML::Load(std::string(text)), "", name, 0, visits, settings);
  } catch (const YAML::Exception& error) {
    throw Error(fmt::format("{}: line {}: is no YAML ({})", name, error.mark.line + 1, error.msg));
  }
  return settings;
}
#else
Settings parse_yaml(std::string_view, const std::string&) {
  return {};
}
#endif

}  // namespace shardwright::cli::settings_language

namespace shardwright::cli {

bool reads(SettingsLanguage language) {
#ifndef SHARDWRIGHT_HAS_YAML
  if (language == SettingsLanguage::kYaml) return false;
#endif
#ifndef SHARDWRIGHT_HAS_TOML
  if (language == SettingsLanguage::kToml) return false;
#endif
  static_cast<void>(language);
  return true;
}

}  // namespace shardwright::cli
