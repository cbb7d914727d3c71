// SPDX-License-Identifier: Apache-2.0
#include "cli/time_limit.h"

#include <chrono>
#include <system_error>

#include "sim/core/base/error.h"

namespace shardwright::cli {

TimeLimit::TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds) : wish_(wish) {
  if (!seconds) return;
  try {
    thread_ = std::thread([this, limit = *seconds] { watch(limit); });
  } catch (const std::system_error&) {  // as within a page
    throw Error("--time-limit needs a thread, and none can be started here.",
                ExitCode::kMissingDevice);
  }
}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TimeLimit::watch(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::unique_lock lock(mutex_);
  while (!over_ && !wish_ && Clock::now() < end)
    ended_.wait_for(lock, std::chrono::milliseconds(20));
  if (over_) return;
  passed_ = !wish_;
  flag_ = true;
}

}  // namespace shardwright::cli
