// SPDX-License-Identifier: Apache-2.0
// Bounds of what a file of settings may say beside their number (setting.h), against files of a few
// kilobytes that would become gigabytes or hours: keys that are copied for everything below them,
// lists that hold nothing but each other, names that are filled in again and again.
#pragma once

#include <cstddef>
#include <string>

namespace shardwright::cli::settings_language {

inline constexpr std::size_t kLongestKey = 1024;
inline constexpr std::size_t kLongestValue = 4096;  // no setting that is read has a longer one
inline constexpr int kDeepestSetting = 64;

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

}  // namespace shardwright::cli::settings_language
