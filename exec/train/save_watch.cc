// SPDX-License-Identifier: Apache-2.0
#include "exec/train/save_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace shardwright::exec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostLook_s = 0.5;
constexpr double kLater_s = 2;  // who waits for others lets them tell

void watch(const std::stop_token& ends, const SaveLimits& limits, const SaveWatch::Look& look,
           const SaveWatch::Tell& tell) {
  const double look_s = std::min(kMostLook_s, limits.note_s / 4);
  double waited_s = 0;
  bool noted = false;
  std::int64_t turn = -1;
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  while (!ends.stop_requested()) {
    const auto begin = Clock::now();
    changed.wait_for(lock, ends, std::chrono::duration<double>(look_s), [] { return false; });
    const double passed_s = std::chrono::duration<double>(Clock::now() - begin).count();
    waited_s += std::min(passed_s, 2 * look_s);  // a process that was stopped did not wait
    const SaveStage stage = look();
    if (stage.what.empty() || stage.turn != turn) {
      waited_s = 0;
      noted = false;
      turn = stage.turn;
    } else if (waited_s >= limits.end_s + (stage.waits ? kLater_s : 0)) {
      return tell(fmt::format("{} has not ended after {:.3g} s: a disk or a rank does not answer",
                              stage.what, waited_s),
                  true);
    } else if (waited_s >= limits.note_s && !noted && !stage.waits) {
      noted = true;
      tell(fmt::format("{} takes long, {:.3g} s so far", stage.what, waited_s), false);
    }
  }
}

}  // namespace

SaveWatch::SaveWatch(const SaveLimits& limits, const Look& look, const Tell& tell)
    : thread_([=](const std::stop_token& ends) { watch(ends, limits, look, tell); }) {}

}  // namespace shardwright::exec
