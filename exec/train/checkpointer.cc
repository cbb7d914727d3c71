// SPDX-License-Identifier: Apache-2.0
#include "exec/train/checkpointer.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "exec/train/host_room.h"

namespace shardwright::exec {

using Stage = CheckpointWriter::Stage;

namespace {

constexpr const char* kNames = "whose files take their name in";
constexpr const char* kWaits = "waits";

}  // namespace

Checkpointer::Checkpointer(Executor& executor, std::filesystem::path folder, std::int64_t keep,
                           CheckpointManifest manifest, Notify notify)
    : executor_(executor),
      folder_(std::move(folder)),
      keep_(keep),
      manifest_(std::move(manifest)),
      notify_(std::move(notify)),
      memory_(executor.device()) {
  manifest_.tensors = tensors_of(executor.layout());
}

void Checkpointer::require_room(std::optional<Bytes> host_memory_left) const {
  require_host_room(executor_.world(), writes() ? snapshot_bytes(executor_) : 0, host_memory_left);
}

void Checkpointer::watch(const SaveLimits& limits, const SaveWatch::Tell& tell) {
  watch_ = std::make_unique<SaveWatch>(
      limits, [this] { return stage(); }, tell);
}

SaveStage Checkpointer::stage() const {
  const char* section = section_.load();
  const bool writes = writer_.state().stage == Stage::kWriting;
  if (!writes && section == nullptr) return {};
  const std::int64_t rank = executor_.world().rank(), step = step_.load();
  const auto folder = unfinished_checkpoint(folder_, step);
  if (!writes && section == kWaits) {
    return {fmt::format("rank {}: the wait for other ranks after a step", rank), true,
            -sections_.load()};
  }
  return {fmt::format("rank {}: the checkpoint of step {}, {} {},", rank, step,
                      writes ? "whose file is" : section,
                      (writes ? folder / file_name(rank) : folder).string()),
          false, writes ? begun_.load() : -sections_.load()};
}

void Checkpointer::during(const char* what, const std::function<void()>& work) {
  sections_.fetch_add(1);
  section_.store(what);
  work();
  section_.store(nullptr);
}

void Checkpointer::prepare() {
  if (writes()) memory_.room(snapshot_bytes(executor_));
}

bool Checkpointer::writes() const {
  const std::vector<std::int64_t>& writers = executor_.counting_ranks();
  return std::binary_search(writers.begin(), writers.end(), executor_.world().rank());
}

std::string Checkpointer::file_name(std::int64_t rank) const {
  const std::vector<std::int64_t>& writers = executor_.counting_ranks();
  const auto at = std::lower_bound(writers.begin(), writers.end(), rank);
  return fmt::format("rank-{:05}-of-{:05}.safetensors", at - writers.begin(), writers.size());
}

CheckpointWriter::State Checkpointer::state() const {
  if (pending_ && !writes()) return {.stage = Stage::kWritten};
  return writer_.state();
}

void Checkpointer::begin(std::int64_t step, std::int64_t sequences, std::int64_t tokens) {
  finish();
  manifest_.step = step;
  manifest_.sequences = sequences;
  manifest_.tokens = tokens;
  step_.store(step);
  begun_.fetch_add(1);
  pending_ = true;
  if (!writes()) return;
  writer_.start(take_snapshot(executor_, memory_), unfinished_checkpoint(folder_, step),
                file_name(executor_.world().rank()));
}

Wish Checkpointer::end_step(const Wish& mine) {
  const std::vector<Vote> votes = exchange(mine);
  settle(votes);
  Wish all;
  for (const Vote& vote : votes) {
    all.stop |= vote.stop != 0;
    all.save |= vote.save != 0;
  }
  return all;
}

void Checkpointer::finish() {
  if (!pending_) return;
  writer_.wait();
  settle(exchange({}));
}

std::vector<Vote> Checkpointer::exchange(const Wish& mine) {
  std::vector<Vote> votes;
  during(kWaits, [&] { votes = exchange_votes(executor_.world(), mine, state()); });
  return votes;
}

void Checkpointer::settle(const std::vector<Vote>& votes) {
  const auto any = [&](Stage stage) {
    return std::any_of(votes.begin(), votes.end(),
                       [&](const Vote& vote) { return vote.stage == stage; });
  };
  if (!pending_ || any(Stage::kWriting)) return;
  pending_ = false;
  writer_.reset();
  for (const Vote& vote : votes) {
    if (vote.stage == Stage::kNotFinite && not_finite_.empty()) not_finite_ = vote.error;
  }
  if (executor_.world().rank() == 0) during(kNames, [&] { commit(votes); });
  // A slow flush must not be taken for a rank that hangs in the next step.
  during(kWaits, [&] { executor_.world().barrier(); });
}

void Checkpointer::commit(const std::vector<Vote>& votes) {
  std::string error = not_finite_;
  for (std::size_t rank = 0; rank < votes.size() && error.empty(); ++rank) {
    if (votes[rank].stage == Stage::kFailed) error = votes[rank].error;
  }
  if (error.empty()) {
    manifest_.files.clear();
    for (const std::int64_t rank : executor_.counting_ranks()) {
      const Vote& vote = votes[static_cast<std::size_t>(rank)];
      manifest_.files.push_back({file_name(rank), vote.bytes, vote.crc});
    }
    try {
      commit_checkpoint(folder_, manifest_);
      prune_checkpoints(folder_, keep_);
    } catch (const std::exception& refused) {
      error = refused.what();
    }
  }
  failed_ = !error.empty();
  if (!failed_) {
    last_saved_ = manifest_.step;
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(unfinished_checkpoint(folder_, manifest_.step), ignored);
  notify_(
      fmt::format("the checkpoint of step {} could not be written, earlier ones are as they "
                  "were: {}",
                  manifest_.step, error));
}

}  // namespace shardwright::exec
