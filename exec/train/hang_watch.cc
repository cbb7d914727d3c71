// SPDX-License-Identifier: Apache-2.0
#include "exec/train/hang_watch.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/numbers.h"

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

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRemembered = 32;  // steps
constexpr std::size_t kComparable = 3;   // so many make a median
constexpr double kTick_s = 0.5;

}  // namespace

StepWatchdog::StepWatchdog(const HangLimits& limits, std::int64_t rank,
                           std::filesystem::path folder, Progress progress, OnHang on_hang)
    : limits_(limits),
      rank_(rank),
      folder_(std::move(folder)),
      progress_(std::move(progress)),
      on_hang_(std::move(on_hang)) {
  thread_ = std::thread([this] { watch(); });
}

StepWatchdog::~StepWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWatchdog::begin(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  turn_ = turns_++;
  waited_s_ = 0;
  begun_ = Clock::now();
  changed_.notify_all();
}

void StepWatchdog::begin(WatchedStage stage) {
  const std::lock_guard lock(mutex_);
  step_ = -1;
  stage_ = std::move(stage);
  turn_ = turns_++;
  waited_s_ = 0;
  changed_.notify_all();
}

void StepWatchdog::end() {
  const std::lock_guard lock(mutex_);
  turn_ = -1;
  const double took_s = std::chrono::duration<double>(Clock::now() - begun_).count();
  if (steps_s_.size() < kRemembered) {
    steps_s_.push_back(took_s);
  } else {
    steps_s_[next_++ % kRemembered] = took_s;
  }
}

void StepWatchdog::end_stage() {
  const std::lock_guard lock(mutex_);
  turn_ = -1;
}

double StepWatchdog::median_s() const {
  return steps_s_.size() < kComparable ? 0 : quantile(steps_s_, 0.5);
}

double StepWatchdog::limit_s() const {
  const std::lock_guard lock(mutex_);
  return step_limit_s();
}

double StepWatchdog::step_limit_s() const {
  if (steps_s_.size() < kComparable) return limits_.first_s;
  return std::max(limits_.least_s, limits_.factor * median_s());
}

void StepWatchdog::watch() {
  const double tick_s = std::min(kTick_s, limits_.least_s / 4);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (!watches() || told_) {
      changed_.wait(lock, [this] { return ends_ || (watches() && !told_); });
      continue;
    }
    const std::int64_t turn = turn_;
    const auto begin = Clock::now();
    changed_.wait_for(lock, std::chrono::duration<double>(tick_s),
                      [&] { return ends_ || turn_ != turn; });
    if (turn_ != turn) continue;
    const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
    waited_s_ += std::min(passed, 2 * tick_s);  // a process that was stopped did not wait
    const double limit = step_ < 0 ? stage_.limit_s : step_limit_s();
    if (waited_s_ < limit || ends_) continue;
    told_ = true;
    const std::int64_t step = step_;
    const WatchedStage stage = stage_;
    const double waited = waited_s_, median = median_s();
    lock.unlock();
    tell(step, stage, waited, median);
    lock.lock();
  }
}

void StepWatchdog::tell(std::int64_t step, const WatchedStage& stage, double waited_s,
                        double median_s) {
  const StepProgress progress = progress_();
  const bool is_step = step >= 0;
  std::string where = fmt::format("began {} of {} operations", progress.begun, progress.operations);
  if (!progress.last_begun.empty()) where += fmt::format(", the last was {}", progress.last_begun);
  where += progress.oldest_unfinished.empty()
               ? std::string("; all that it enqueued is done")
               : fmt::format("; the first that is not done is {}", progress.oldest_unfinished);
  std::string sentence = fmt::format("rank {}: {} has not ended after {:.0f} s", rank_,
                                     is_step ? fmt::format("step {}", step) : stage.what, waited_s);
  if (is_step && median_s > 0) sentence += fmt::format(" (median {:.3g} s)", median_s);
  if (is_step || stage.advice.empty()) sentence += fmt::format(": it {}", where);
  if (!is_step && !stage.advice.empty()) sentence += "; " + stage.advice;
  try {
    const nlohmann::ordered_json record{
        {"schema", "shardwright.flight/1.0"},
        {"rank", rank_},
        {"step", is_step ? nlohmann::ordered_json(step) : nlohmann::ordered_json(nullptr)},
        {"stage", is_step ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(stage.what)},
        {"waited_s", waited_s},
        {"median_s", median_s},
        {"begun", progress.begun},
        {"operations", progress.operations},
        {"last_begun", progress.last_begun},
        {"oldest_unfinished", progress.oldest_unfinished}};
    write_file_atomically(folder_ / fmt::format("flight-rank-{:05}.json", rank_),
                          record.dump(1) + "\n", OutputPlace::kInFolder);
  } catch (const std::exception&) {
    // The sentence says the same.
  }
  on_hang_(sentence);
}

}  // namespace shardwright::exec
