// SPDX-License-Identifier: Apache-2.0
#include "exec/train/step_watchdog.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/numbers.h"

namespace shardwright::exec {
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
