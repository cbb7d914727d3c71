// SPDX-License-Identifier: Apache-2.0
// Settings of another trainer as they stand in its file: one list of dotted keys and their text,
// whatever the file's language.
//
// JSON, YAML and TOML are read by libraries; of Python modules what their functions come to without
// running them ("config.training.seq_len = 4096", "TrainingConfig(seq_len=4096)"), of shell scripts
// what is a setting ("--seq-length 4096", "model.seq_length=4096"). Nothing is ever run. Values are
// the text of a number, of a string without its quotes, or true, false and null.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli {

struct Setting {
  std::string key;    // "training.local_batch_size", "moe.experts[2].size"
  std::string value;  // "8", "true", "llama3"
};
using Settings = std::vector<Setting>;

enum class SettingsLanguage { kJson, kYaml, kToml, kPython, kShell };

/// By the ending: .json, .yaml and .yml, .toml, .py; anything else is a shell script or a line of
/// flags.
SettingsLanguage language_of(const std::filesystem::path& path);

/// Whether this build reads the language: YAML and TOML need their libraries.
bool reads(SettingsLanguage language);

/// Throws Error naming the file, with line where the text is none of the language; with the code of
/// a missing library where reads() is false.
Settings read_settings(const std::filesystem::path& path);

/// As read_settings for text in memory; `name` stands for the file in errors. Of a Python module
/// with several functions only `function` is read; empty: the only one. What it imports is looked
/// for above `folder`; empty: nowhere.
Settings parse_settings(SettingsLanguage language, std::string_view text, const std::string& name,
                        const std::string& function = {}, const std::filesystem::path& folder = {});

/// Bounds what a file may say, against files that name themselves over and over.
inline constexpr std::size_t kMostSettings = 20000;
inline constexpr std::size_t kMostSettingsBytes = std::size_t{4} << 20;

namespace settings_language {
Settings parse_json(std::string_view text, const std::string& name);
Settings parse_yaml(std::string_view text, const std::string& name);
Settings parse_toml(std::string_view text, const std::string& name);
Settings parse_python(std::string_view text, const std::string& name, const std::string& function,
                      const std::filesystem::path& folder);
Settings parse_shell(std::string_view text, const std::string& name);
/// Throws Error once there are too many.
void add_setting(Settings& settings, std::string key, std::string value, const std::string& name);

// Bounds of what a file of settings may say beside their number, against files of a few
// kilobytes that would become gigabytes or hours: keys that are copied for everything below them,
// lists that hold nothing but each other, names that are filled in again and again.

inline constexpr std::size_t kLongestKey = 1024;
inline constexpr std::size_t kLongestValue = 4096;  // no setting that is read has a longer one
inline constexpr int kDeepestSetting = 64;

/// "member", or "key.member" below one.
std::string key_below(const std::string& key, std::string_view member);
/// Throws Error where the key is too long.
void check_key(const std::string& key, const std::string& name);

/// Walks a tree of maps and lists, of which many may be empty.
class Visits {
 public:
  explicit Visits(const std::string& name) : name_(name) {}
  /// Throws Error where the tree has too many branches, the key is too long or the place too deep.
  void enter(const std::string& key, int depth);

 private:
  const std::string& name_;
  std::size_t count_ = 0;
};
}  // namespace settings_language

}  // namespace shardwright::cli
