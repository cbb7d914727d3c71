// SPDX-License-Identifier: Apache-2.0
// An end by the clock, for work that looks at a wish to end (cli/interrupt.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace shardwright::cli {

/// Its flag turns true when `wish` does, or `seconds` after it was made.
class TimeLimit {
 public:
  /// Without `seconds` the flag is the wish itself.
  TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  const std::atomic<bool>& flag() const { return thread_.joinable() ? flag_ : wish_; }
  /// Whether it was the clock.
  bool passed() const { return passed_; }

 private:
  void watch(double seconds);

  const std::atomic<bool>& wish_;
  std::atomic<bool> flag_{false}, passed_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace shardwright::cli
