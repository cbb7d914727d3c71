// SPDX-License-Identifier: Apache-2.0
#include "exec/train/checkpointer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace {

struct RoomOfRank {
  std::uint64_t machine = 0;
  Bytes needed = 0;
  Bytes left = std::numeric_limits<Bytes>::max();
};

std::uint64_t this_machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return std::hash<std::string>()(name.data());
}

}  // namespace

void require_host_room(Communicator& world, Bytes mine, std::optional<Bytes> left) {
  RoomOfRank own{this_machine(), mine};
  if (left) own.left = *left;
  const std::vector<RoomOfRank> all = exchange_all(world, own);
  for (const RoomOfRank& first : all) {
    RoomOfRank sum{first.machine};
    for (const RoomOfRank& rank : all) {
      if (rank.machine != first.machine) continue;
      sum.needed += rank.needed;
      sum.left = std::min(sum.left, rank.left);
    }
    if (sum.needed <= sum.left) continue;
    throw Error(
        fmt::format("checkpoints copy the state of the ranks on one machine to its memory first, "
                    "{:.2f} GiB, of which {:.2f} are left; expected more of it, more machines, or "
                    "--save none",
                    static_cast<double>(sum.needed) / kGiB, static_cast<double>(sum.left) / kGiB),
        ExitCode::kInfeasible);
  }
}

namespace {

CheckpointFile write_file(const StateSnapshot& snapshot, const std::filesystem::path& folder,
                          const std::string& name) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / name;
  SafetensorsWriter writer(path, snapshot.specs, {{"format", "shardwright.checkpoint"}});
  for (const std::span<const std::byte> bytes : snapshot.data) writer.write(bytes);
  writer.finish();
  // The checksum is of what lay in memory, and what the disk took has to have it.
  require_checksum(path, writer.crc());
  return {name, writer.bytes(), writer.crc()};
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  wait();
}

void CheckpointWriter::start(StateSnapshot snapshot, std::filesystem::path folder,
                             std::string name) {
  SHARDWRIGHT_CHECK(!thread_.joinable(), "a checkpoint is being written");
  {
    const std::lock_guard lock(mutex_);
    state_ = {.stage = Stage::kWriting};
  }
  thread_ = std::thread(
      [this, snapshot = std::move(snapshot), folder = std::move(folder), name = std::move(name)] {
        State result;
        try {
          result.error = first_not_finite(snapshot);
          if (!result.error.empty()) {
            result.stage = Stage::kNotFinite;
            return store(std::move(result));
          }
          result.file = write_file(snapshot, folder, name);
          result.stage = Stage::kWritten;
        } catch (const std::exception& error) {
          result.stage = Stage::kFailed;
          result.error = error.what();
        }
        store(std::move(result));
      });
}

void CheckpointWriter::store(State result) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(result);
}

CheckpointWriter::State CheckpointWriter::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::reset() {
  wait();
  const std::lock_guard lock(mutex_);
  state_ = {};
}

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

std::vector<Vote> Checkpointer::exchange(const Wish& wish) {
  const CheckpointWriter::State now = state();
  Vote mine;
  mine.stop = wish.stop ? 1 : 0;
  mine.save = wish.save ? 1 : 0;
  mine.stage = now.stage;
  mine.crc = now.file.crc;
  mine.bytes = now.file.bytes;
  std::copy_n(now.error.data(), std::min(now.error.size(), sizeof mine.error - 1), mine.error);
  std::vector<Vote> votes;
  during(kWaits, [&] { votes = exchange_all(executor_.world(), mine); });
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
