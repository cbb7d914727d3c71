// SPDX-License-Identifier: Apache-2.0
// How far a step is, for whoever asks while the rank's own thread may wait for ever: numbers that
// the walk leaves behind, and events that any thread may query.
#include <fmt/core.h>

#include "exec/executor.h"

namespace shardwright::exec {

void Executor::begin_op(const OpInstance& at, std::uint32_t op) {
  begun_op_.store(op, std::memory_order_relaxed);
  begun_unit_.store(at.unit, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
}

std::string Executor::words_of(std::uint32_t op, std::int32_t unit) const {
  const Op& what = schedule_.ops[op];
  return fmt::format("{} of unit {} of {} on stream {}", name_of(what.kind),
                     schedule_.target(what, unit), schedule_.units(),
                     schedule_.streams[what.stream].name);
}

StepProgress Executor::progress() const {
  StepProgress progress;
  progress.operations = operations_;
  progress.begun = begun_.load(std::memory_order_acquire);
  if (progress.begun == 0) return progress;
  progress.last_begun = words_of(begun_op_.load(), begun_unit_.load());
  std::int64_t oldest = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const std::int64_t number = recorded_[i].number.load(std::memory_order_acquire);
    if (number == 0 || (oldest != 0 && number > oldest) || events_[i]->has_passed()) continue;
    oldest = number;
    progress.oldest_unfinished = words_of(recorded_[i].op.load(), recorded_[i].unit.load());
  }
  return progress;
}

}  // namespace shardwright::exec
