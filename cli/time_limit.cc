// SPDX-License-Identifier: Apache-2.0
#include "cli/time_limit.h"

#include <chrono>
#include <system_error>

#include "sim/core/base/error.h"

namespace shardwright::cli {

TimeLimit::TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds) : wish_(wish) {
  try {
    thread_ = std::thread([this, seconds] { watch(seconds); });
  } catch (const std::system_error&) {  // as within a page
    if (!seconds) return;
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

void TimeLimit::watch(std::optional<double> seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kGrace{0.7};
  constexpr std::chrono::milliseconds kLook{20};
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  while (!over_ && !wish_ && !(seconds && Clock::now() - begin >= Seconds(*seconds)))
    ended_.wait_for(lock, kLook);
  flag_ = !over_;
  for (const auto since = Clock::now(); !over_ && Clock::now() - since < kGrace;)
    ended_.wait_for(lock, kLook);
  last_flag_ = !over_;
}

}  // namespace shardwright::cli
