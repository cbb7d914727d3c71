// SPDX-License-Identifier: Apache-2.0
// An end by the clock, for work that looks at a wish to end (cli/interrupt.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace shardwright::cli {

/// Its flag turns true when `wish` does, or `seconds` after it was made; a second flag 0.7 s after
/// the first, so that whoever looks at both ends within a second.
class TimeLimit {
 public:
  /// Without `seconds`, and where no thread can be started, the flag is the wish itself.
  TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  const std::atomic<bool>& flag() const { return thread_.joinable() ? flag_ : wish_; }
  const std::atomic<bool>& last_flag() const { return last_flag_; }

 private:
  void watch(std::optional<double> seconds);

  const std::atomic<bool>& wish_;
  std::atomic<bool> flag_{false}, last_flag_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace shardwright::cli
