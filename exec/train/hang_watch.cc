// SPDX-License-Identifier: Apache-2.0
#include "exec/train/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace shardwright::exec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestLook_s = 0.5;

/// Whether a rank has done what another one that is within a step does there.
bool has_ended(const StepProgress& rank, const StepProgress& other) {
  return rank.walks >= other.walks && !rank.is_within_a_step;
}

bool waits_for_another(const std::vector<StepProgress>& all, std::size_t rank) {
  const std::vector<std::int64_t>& takes = all[rank].takes;
  return std::any_of(takes.begin(), takes.end(), [&](std::int64_t number) {
    const StepProgress& other = all[static_cast<std::size_t>(number)];
    const bool is_there = takes.size() > 1 && other.takes == takes;
    return number != static_cast<std::int64_t>(rank) && !is_there && !has_ended(other, all[rank]);
  });
}

/// Whether a rank waits between steps for one that is within them.
bool waits_behind(const std::vector<StepProgress>& all, std::size_t rank) {
  return std::all_of(all.begin(), all.end(),
                     [&](const StepProgress& other) { return has_ended(all[rank], other); });
}

std::size_t furthest_behind(const std::vector<StepProgress>& all) {
  const auto done = [](const StepProgress& progress) {
    return static_cast<double>(progress.begun) / static_cast<double>(progress.operations);
  };
  const auto last = std::min_element(
      all.begin(), all.end(),
      [&](const StepProgress& a, const StepProgress& b) { return done(a) < done(b); });
  return static_cast<std::size_t>(last - all.begin());
}

std::string where(const StepProgress& progress) {
  return progress.is_within_a_step ? "at " + progress.last_begun : "between steps";
}

}  // namespace

HangWatch::HangWatch(std::int64_t ranks, double limit_s,
                     std::function<void(const std::string&)> on_hang)
    : limit_s_(limit_s), on_hang_(std::move(on_hang)), executors_(static_cast<std::size_t>(ranks)) {
  thread_ = std::thread([this] { watch(); });
}

HangWatch::~HangWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ends_changed_.notify_all();
  thread_.join();
}

HangWatch::Member::Member(HangWatch& watch, std::int64_t rank, const Executor& executor)
    : watch_(watch), rank_(static_cast<std::size_t>(rank)) {
  const std::lock_guard lock(watch_.mutex_);
  watch_.executors_[rank_] = &executor;
}

HangWatch::Member::~Member() {
  const std::lock_guard lock(watch_.mutex_);
  watch_.executors_[rank_] = nullptr;
}

std::int64_t HangWatch::begun() const {
  std::int64_t begun = 0;
  for (const Executor* executor : executors_) {
    if (executor != nullptr) begun += executor->begun_operations();
  }
  return begun;
}

bool HangWatch::is_within_a_step() const {
  return std::any_of(executors_.begin(), executors_.end(), [](const Executor* executor) {
    return executor != nullptr && executor->is_within_a_step();
  });
}

void HangWatch::watch() {
  const double look_s = std::min(kLongestLook_s, limit_s_ / 4);
  std::unique_lock lock(mutex_);
  std::int64_t seen = 0;
  double waited_s = 0;
  while (!ends_) {
    const auto begin = Clock::now();
    ends_changed_.wait_for(lock, std::chrono::duration<double>(look_s), [this] { return ends_; });
    const double passed_s = std::chrono::duration<double>(Clock::now() - begin).count();
    waited_s += std::min(passed_s, 2 * look_s);  // a process that was stopped did not wait
    const std::int64_t now = begun();
    if (now != seen || !is_within_a_step()) waited_s = 0;
    seen = now;
    if (waited_s < limit_s_ || ends_) continue;
    const std::string sentence = told();
    lock.unlock();
    return on_hang_(sentence);
  }
}

std::string HangWatch::told() const {
  std::vector<StepProgress> all(executors_.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (executors_[r] != nullptr) all[r] = executors_[r]->progress();
  }
  std::vector<std::size_t> awaited, waiting;
  for (std::size_t r = 0; r < all.size(); ++r)
    (waits_for_another(all, r) || waits_behind(all, r) ? waiting : awaited).push_back(r);
  std::string sentence =
      fmt::format("no rank has begun an operation for {:.3g} s (--rank-timeout): ", limit_s_);
  if (awaited.empty()) {
    const std::size_t last = furthest_behind(all);
    return sentence + fmt::format("all ranks wait for each other, rank {} is furthest behind, {}",
                                  last, where(all[last]));
  }
  const bool is_one = awaited.size() == 1;
  sentence +=
      fmt::format("rank{} {} {} waited for, {}", is_one ? "" : "s", fmt::join(awaited, ", "),
                  is_one ? "is" : "are", where(all[awaited.front()]));
  if (!waiting.empty())
    sentence += fmt::format("; rank {} waits {}", waiting.front(), where(all[waiting.front()]));
  return sentence;
}

}  // namespace shardwright::exec
