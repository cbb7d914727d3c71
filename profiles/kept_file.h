// SPDX-License-Identifier: Apache-2.0
// Shipped files that every prediction needs, read once: a host of the planner (a page, a Python
// process) asks thousands of questions, and parsing the fitted costs takes longer than predicting.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

namespace shardwright::profiles {

/// What a reader made of files, kept for as long as a file's time and size stay what they were. May
/// be asked by several threads.
template <typename Value>
class KeptFiles {
 public:
  using Read = Value (*)(const std::string&);
  explicit KeptFiles(Read read) : read_(read) {}

  /// Never null. Throws what the reader throws, and keeps nothing then.
  std::shared_ptr<const Value> get(const std::string& file) {
    std::error_code unknown;
    const Stamp stamp{std::filesystem::last_write_time(file, unknown),
                      std::filesystem::file_size(file, unknown)};
    const std::lock_guard lock(mutex_);
    Kept& kept = kept_[file];
    if (unknown || kept.value == nullptr || kept.stamp != stamp) {
      kept = {stamp, std::make_shared<const Value>(read_(file))};
    }
    return kept.value;
  }

 private:
  using Stamp = std::pair<std::filesystem::file_time_type, std::uintmax_t>;
  struct Kept {
    Stamp stamp{};
    std::shared_ptr<const Value> value;
  };

  Read read_;
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
};

}  // namespace shardwright::profiles
