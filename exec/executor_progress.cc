// SPDX-License-Identifier: Apache-2.0
// How far a step is, for whoever asks while the rank's own thread may wait for ever: numbers that
// the walk leaves behind, and events that any thread may query. And where it was when it failed.
#include <fmt/format.h>

#include <new>
#include <system_error>

#include "exec/executor.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

std::string_view words_for(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return "forward";
    case PassKind::kBackward:
      return "backward";
    case PassKind::kBackwardInput:
      return "input gradients";
    case PassKind::kBackwardWeight:
      break;
  }
  return "weight gradients";
}

std::string words_for(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kMost = 8;  // to be listed
  if (ranks.size() <= kMost) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks from {} on", ranks.size(), ranks.front());
}

CommGroup group_of(const Op& op) {
  return op.kind == OpKind::kGradientNorm ? CommGroup::kWorld : op.work.group;
}

}  // namespace

void Executor::begin_op(const OpInstance& at) {
  // What is inline has failed in the operation before; elsewhere nothing more need be issued.
  if (device_.has_failed()) device_.synchronize();
  device_.begin_operation(at.id);
  begun_id_.store(at.id, std::memory_order_relaxed);
  if (begun_.load(std::memory_order_relaxed) == 0) walks_.fetch_add(1, std::memory_order_relaxed);
  begun_ever_.fetch_add(1, std::memory_order_relaxed);
  is_within_a_step_.store(true, std::memory_order_relaxed);
  begun_.fetch_add(1, std::memory_order_release);
}

/// With whom an operation is done: all members of a collective's group, the other end of a message.
std::vector<std::int64_t> Executor::ranks_of(const Op& op) const {
  const std::int64_t rank = groups_.world->rank();
  if (op.peer >= 0)
    return {mesh_.members(CommGroup::kPipeline, rank)[static_cast<std::size_t>(op.peer)]};
  if (!is_collective(op.kind) && op.kind != OpKind::kGradientNorm) return {};
  std::vector<std::int64_t> ranks = mesh_.members(group_of(op), rank);
  if (ranks.size() < 2) ranks.clear();
  return ranks;
}

std::string Executor::words_of(OpId id) const {
  std::string words;
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (at.id != id) return;
    if (mesh_.pp > 1) words = fmt::format("stage {} of {}, ", place_.pp, mesh_.pp);
    if (const std::optional<Action>& pass = schedule_.sections[at.section].pass) {
      words += fmt::format("{} of micro-batch {}, chunk {}, ", words_for(pass->kind),
                           pass->micro_batch, pass->chunk);
    }
    words += name_of(op.kind);
    if (op.of != OpKind::kHostWork) words += fmt::format(" of {}", name_of(op.of));
    words += fmt::format(" of unit {} of {} on stream {}", schedule_.target(op, at.unit),
                         schedule_.units(), schedule_.streams[op.stream].name);
    const std::vector<std::int64_t> ranks = ranks_of(op);
    if (op.peer >= 0) {
      words += fmt::format(" {} rank {} of stage {}", op.kind == OpKind::kSend ? "to" : "from",
                           ranks.front(), op.peer);
    } else if (!ranks.empty()) {
      words += " between " + words_for(ranks);
    }
  });
  return words;
}

std::vector<std::int64_t> Executor::taken_ranks(OpId id) const {
  std::vector<std::int64_t> ranks;
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (at.id == id && op.kind != OpKind::kSend) ranks = ranks_of(op);
  });
  return ranks;
}

StepProgress Executor::progress() const {
  StepProgress progress;
  progress.operations = operations_;
  progress.begun = begun_.load(std::memory_order_acquire);
  progress.walks = walks_.load(std::memory_order_relaxed);
  if (progress.begun == 0) return progress;
  progress.is_within_a_step = is_within_a_step();
  progress.last_begun = words_of(begun_id_.load());
  if (progress.is_within_a_step) progress.takes = taken_ranks(begun_id_.load());
  std::int64_t oldest = 0;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const std::int64_t number = recorded_[i].number.load(std::memory_order_acquire);
    if (number == 0 || (oldest != 0 && number > oldest) || events_[i]->has_passed()) continue;
    oldest = number;
    progress.oldest_unfinished = words_of(recorded_[i].id.load());
  }
  return progress;
}

void Executor::end_with_place(bool issues) {
  // Streams that are threads are elsewhere than the host that has issued their work.
  const bool has_failed = device_.has_failed();
  OpId failed = -1;
  if (has_failed) {
    failed = device_.failed_operation();
  } else if (issues && begun_.load() > 0) {
    failed = begun_id_.load();
  }
  std::string place;
  if (failed >= 0) {
    place = ", at " + words_of(failed);
  } else if (mesh_.pp > 1) {
    place = fmt::format(", at stage {} of {}", place_.pp, mesh_.pp);
  }
  groups_.world->fail();
  device_.drain();
  try {
    // Others may know of a stream's failure before the host of this rank does.
    if (has_failed) device_.synchronize();
    throw;
  } catch (const Error& error) {
    throw Error(error.what() + place, error.code());
  } catch (const Aborted&) {
    throw;  // of which another rank tells
  } catch (const std::system_error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(fmt::format("unexpected failure: {}{}", error.what(), place), ExitCode::kFailed);
  }
}

}  // namespace shardwright::exec
