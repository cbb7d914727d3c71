// SPDX-License-Identifier: Apache-2.0
// Every setting of `run`, where its value comes from, and in which order: a flag beats an
// environment variable, that beats the run file (--config), that beats the plan (--plan), that
// beats the default.
//
// One table lists them all: --grad-accum, SHARDWRIGHT_RUN_GRAD_ACCUM and "grad-accum = 4" in a run
// file are the same setting. Values are kept as text beside their origin; options.h reads them, and
// the plan's own by the table of sim/core/plan_knobs.h.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/base/parse_number.h"

namespace shardwright::cli {

struct SettingInfo {
  const char* key;  // of flags and run files: "grad-accum"
  const char* type;
  const char* fallback;  // empty: none, or said in `help`
  const char* help;
  const char* group;  // empty: --help leaves it out
  bool shown() const { return *group != '\0'; }
};

/// The setting that names a run file.
inline constexpr const char* kConfig = "config";

/// All settings but kConfig, in the order in which they are shown.
const std::vector<SettingInfo>& setting_table();

struct RunSetting {
  std::string value;
  std::string origin = "default";
  std::string name;    // for errors: "--steps", "SHARDWRIGHT_RUN_STEPS", "steps in run.ini"
  bool given = false;  // not a default
};

/// "NAME=value" strings of the process's environment.
std::vector<std::pair<std::string, std::string>> process_environment();

class RunSettings {
 public:
  /// What the command line gives for a setting of the table, or for "config".
  void set_flag(const std::string& key, const std::string& value) { flags_[key] = value; }
  /// Merges flags, environment and the run file that --config (or SHARDWRIGHT_RUN_CONFIG) names.
  /// Throws Error naming a setting that does not exist, and the file.
  void resolve(const std::vector<std::pair<std::string, std::string>>& environment);

  bool knows(const std::string& key) const { return settings_.contains(key); }
  const RunSetting& at(const std::string& key) const { return settings_.at(key); }
  bool given(const std::string& key) const { return at(key).given; }
  /// Whether a list of a run's settings has it.
  bool listed(const SettingInfo& info) const { return info.shown() || given(info.key); }
  const std::string& text(const std::string& key) const { return at(key).value; }
  std::int64_t count(const std::string& key, CountRange range) const;
  double number(const std::string& key, RealRange range) const;
  /// One of the words; throws Error naming them all.
  std::string word(const std::string& key, const std::vector<std::string>& words) const;
  /// What somebody else decided: the plan, or a default that depends on other settings.
  void decide(const std::string& key, std::string value, std::string origin);
  [[noreturn]] void fail(const std::string& key, const std::string& accepted) const;

  /// A run file with every value, and its origin as a comment.
  std::string ini(const std::string& headline) const;

 private:
  void take(const std::string& key, const std::string& value, const std::string& origin,
            const std::string& name);
  void read_file(const std::string& path);

  std::map<std::string, std::string> flags_;  // given on the command line
  std::map<std::string, RunSetting> settings_;
};

}  // namespace shardwright::cli
