// SPDX-License-Identifier: Apache-2.0
#include "cli/run/settings.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <fstream>
#include <sstream>

#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kVariablePrefix = "SHARDWRIGHT_RUN_";
constexpr std::size_t kMostRunFileBytes = std::size_t{1} << 20;

std::string variable_of(const std::string& key) {
  std::string name(kVariablePrefix);
  for (const char c : key) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys = {kConfig};
  for (const SettingInfo& info : setting_table()) keys.emplace_back(info.key);
  return keys;
}

/// The settings as Boost knows them: all texts.
po::options_description boost_options() {
  po::options_description options;
  for (const std::string& key : all_keys()) {
    options.add_options()(key.c_str(), po::value<std::string>());
  }
  return options;
}

/// Boost 1.74 never returns from telling about some lines that it refuses, so those that it would
/// refuse are told about here.
void check_lines(const std::string& path, const std::string& text) {
  constexpr const char* kBlank = " \t\r";
  constexpr std::size_t kMostShown = 40;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    const std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string::npos) continue;
    line = line.substr(begin, line.find_last_not_of(kBlank) - begin + 1);
    const bool heading = line.front() == '[' && line.back() == ']';
    if (heading || line.find('=') != std::string::npos) continue;
    throw Error(fmt::format("{}: line {} is '{}', but it must be KEY = VALUE or a comment after #",
                            path, number, line.substr(0, kMostShown)));
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string text = *at;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

void RunSettings::take(const std::string& key, const std::string& value, const std::string& origin,
                       const std::string& name) {
  if (value.find_first_of("#\n\r") != std::string::npos) {
    throw Error(
        fmt::format("{} is '{}', expected a value without # and line ends, which run files "
                    "cannot hold",
                    name, value));
  }
  settings_[key] = {value, origin, name, true};
}

void RunSettings::resolve(const std::vector<std::pair<std::string, std::string>>& environment) {
  settings_.clear();
  for (const SettingInfo& info : setting_table()) {
    settings_[info.key] = {info.fallback, "default", fmt::format("--{}", info.key), false};
  }
  std::string config;
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : environment) {
    if (!std::string_view(name).starts_with(kVariablePrefix)) continue;
    const std::vector<std::string> keys = all_keys();
    const auto known = std::find_if(
        keys.begin(), keys.end(),
        [&wanted = name](const std::string& key) { return variable_of(key) == wanted; });
    if (known == keys.end()) {
      std::vector<std::string> names;
      for (const std::string& key : keys) names.push_back(variable_of(key));
      throw Error(fmt::format("the environment variable {} is no setting of run{}", name,
                              did_you_mean(name, names)));
    }
    variables[*known] = value;
  }
  if (variables.contains(kConfig)) config = variables[kConfig];
  if (flags_.contains(kConfig)) config = flags_[kConfig];
  if (!config.empty()) read_file(config);
  for (const auto& [key, value] : variables) {
    if (key != kConfig) take(key, value, "environment", variable_of(key));
  }
  for (const auto& [key, value] : flags_) {
    if (key != kConfig) take(key, value, "flag", fmt::format("--{}", key));
  }
}

void RunSettings::read_file(const std::string& path) {
  const std::string content = shardwright::read_file(path, kMostRunFileBytes);
  check_lines(path, content);
  std::istringstream text(content);
  const po::options_description options = boost_options();
  const auto parsed = po::parse_config_file(text, options, /*allow_unregistered=*/true);
  for (const auto& option : parsed.options) {
    if (option.unregistered || option.string_key == kConfig) {
      const std::vector<std::string> keys = all_keys();
      throw Error(fmt::format("{}: '{}' is no setting of run{}", path, option.string_key,
                              did_you_mean(option.string_key, keys)));
    }
    if (settings_.at(option.string_key).given) {
      throw Error(fmt::format("{}: '{}' is there twice", path, option.string_key));
    }
    take(option.string_key, option.value.empty() ? "" : option.value.front(), path,
         fmt::format("{} in {}", option.string_key, path));
  }
  // An empty value means "not given", so that a run file can list every setting.
  for (auto& [key, setting] : settings_) {
    if (setting.given && setting.value.empty()) setting.given = false;
  }
}

std::int64_t RunSettings::count(const std::string& key, CountRange range) const {
  return parse_count(at(key).name, at(key).value, range);
}

double RunSettings::number(const std::string& key, RealRange range) const {
  return parse_number(at(key).name, at(key).value, range);
}

std::string RunSettings::word(const std::string& key, const std::vector<std::string>& words) const {
  const std::string& value = at(key).value;
  if (std::find(words.begin(), words.end(), value) == words.end()) {
    fail(key, fmt::format("one of {}{}", fmt::join(words, ", "), did_you_mean(value, words)));
  }
  return value;
}

void RunSettings::fail(const std::string& key, const std::string& accepted) const {
  throw Error(fmt::format("{} is '{}', but it must be {}", at(key).name, at(key).value, accepted));
}

void RunSettings::decide(const std::string& key, std::string value, std::string origin) {
  RunSetting& setting = settings_.at(key);
  setting.value = std::move(value);
  if (!setting.given) setting.origin = std::move(origin);
}

std::string RunSettings::ini(const std::string& headline) const {
  std::string text = fmt::format("# {}\n", headline);
  const char* group = "";
  for (const SettingInfo& info : setting_table()) {
    if (!listed(info)) continue;
    if (info.shown() && std::string_view(group) != info.group)
      text += fmt::format("\n# {}\n", group = info.group);
    const RunSetting& setting = at(info.key);
    text += fmt::format("{} = {}  # {}\n", info.key, setting.value, setting.origin);
  }
  return text;
}

}  // namespace shardwright::cli
