// SPDX-License-Identifier: Apache-2.0
// One rank's side of checkpoints during training: snapshot, file, agreement, name.
//
// begin() copies the state and returns. At the end of every step the ranks exchange votes; when all
// files are written, rank 0 gives the checkpoint its name and removes the oldest ones. A failed
// write (a full disk) is reported and leaves earlier checkpoints alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/communicator.h"
#include "exec/train/checkpoint.h"
#include "exec/train/train_state.h"
#include "sim/core/units.h"

namespace shardwright::exec {

// Whether a machine has room for the copies of its ranks' state that checkpoints are written from.
//
// They are pinned, and as large as parameters and moments: a machine with less memory than that
// would meet Linux's killer, which says nothing, minutes or hours after the start.

/// Throws Error on all ranks where those of one machine copy more, `mine` on this one, than is
/// `left` there. Who does not know what is left says nothing.
void require_host_room(Communicator& world, Bytes mine, std::optional<Bytes> left);

// Writes one rank's file of a checkpoint while training goes on.
//
// start() takes the snapshot and returns at once; a thread writes it and computes its checksum.
// state() tells how far it is, so that ranks can agree, at the end of a step, that a checkpoint is
// complete. Only one is written at a time.

class CheckpointWriter {
 public:
  enum class Stage : std::uint8_t {
    kIdle,
    kWriting,
    kWritten,
    kFailed,
    kNotFinite  // the state holds NaN or infinity, so nothing was written
  };
  struct State {
    Stage stage = Stage::kIdle;
    CheckpointFile file{};  // when written
    std::string error{};    // when failed or not finite
  };

  CheckpointWriter() = default;
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Writes `snapshot`, whose memory stays until that is done, as `name` into `folder`, which is
  /// made when it is not there. Nothing may be in progress.
  void start(StateSnapshot snapshot, std::filesystem::path folder, std::string name);
  State state() const;
  /// Waits until nothing is being written.
  void wait();
  /// Back to idle, after what was written has been dealt with.
  void reset();

 private:
  void store(State result);

  std::thread thread_;
  mutable std::mutex mutex_;
  State state_;
};

// Notices that a checkpoint is being written for long, and says on which file.
//
// A disk that is gone lets a write wait for ever, and a slow one may take minutes for a flush: the
// first must end the run and the second must not, so the limit is another than that of steps.

struct SaveLimits {
  double note_s = 60;
  double end_s = 3600;
};

/// What a rank does about a checkpoint.
struct SaveStage {
  std::string what{};     // begins a sentence; empty: nothing
  bool waits = false;     // for other ranks, which tell first
  std::int64_t turn = 0;  // another one where time begins anew
};

class SaveWatch {
 public:
  using Look = std::function<SaveStage()>;
  /// Hears of a stage that takes long and, at last, of one that does not end; on a thread of its
  /// own.
  using Tell = std::function<void(const std::string& sentence, bool is_hang)>;

  SaveWatch(const SaveLimits& limits, const Look& look, const Tell& tell);

 private:
  std::jthread thread_;
};

// What ranks tell each other at the end of every step: whether somebody wants to stop or to save,
// and how far the files of a checkpoint are. All decide by the same table, so all do the same.

struct Vote {
  std::uint8_t stop = 0;
  CheckpointWriter::Stage stage = CheckpointWriter::Stage::kIdle;
  std::uint8_t save = 0;
  std::uint8_t unused = 0;
  std::uint32_t crc = 0;
  std::int64_t bytes = 0;
  char error[240] = {};  // ends in zero
};
static_assert(sizeof(Vote) == 256);

/// What a rank wants after a step.
struct Wish {
  bool stop = false;
  bool save = false;
};

class Checkpointer {
 public:
  using Notify = std::function<void(const std::string&)>;

  /// `manifest` has what does not change from step to step. `notify` is told about what rank 0
  /// wrote or could not write.
  Checkpointer(Executor& executor, std::filesystem::path folder, std::int64_t keep,
               CheckpointManifest manifest, Notify notify);

  /// Throws Error where the machine has no room for copies of the state; on all ranks.
  void require_room(std::optional<Bytes> host_memory_left) const;
  /// From now on somebody looks how long checkpoints take; `tell` hears sentences with rank and
  /// step.
  void watch(const SaveLimits& limits, const SaveWatch::Tell& tell);
  /// Makes the memory for them, so that the first checkpoint takes no longer than the others.
  void prepare();
  /// Begins a checkpoint of the present state; one in progress is ended first.
  void begin(std::int64_t step, std::int64_t sequences, std::int64_t tokens);
  /// At the end of a step: tells what any rank wishes, and ends a checkpoint when it is complete.
  Wish end_step(const Wish& mine);
  /// Waits for the checkpoint in progress, on all ranks.
  void finish();

  /// The step of the last checkpoint with a name; -1: none by this object.
  std::int64_t last_saved() const { return last_saved_; }
  /// Whether the last attempt failed; rank 0 knows.
  bool failed() const { return failed_; }
  /// What is not finite in the state of the last attempt, known to all ranks; empty: nothing.
  const std::string& not_finite() const { return not_finite_; }

 private:
  bool writes() const;
  CheckpointWriter::State state() const;
  /// Everybody's votes by rank; the host waits.
  std::vector<Vote> exchange(const Wish& wish);
  /// All ranks call it with the same votes.
  void settle(const std::vector<Vote>& votes);
  void commit(const std::vector<Vote>& votes);
  std::string file_name(std::int64_t rank) const;
  SaveStage stage() const;

  /// Does a part of the rank's own work on a checkpoint, which the watch sees.
  void during(const char* what, const std::function<void()>& work);

  Executor& executor_;
  std::filesystem::path folder_;
  std::int64_t keep_;
  CheckpointManifest manifest_;
  Notify notify_;
  SnapshotMemory memory_;  // stays while the writer reads it
  CheckpointWriter writer_;
  bool pending_ = false;
  std::int64_t last_saved_ = -1;
  bool failed_ = false;
  std::string not_finite_;
  // For the watch: what the rank itself does, and how many sections and checkpoints it has begun.
  std::atomic<const char*> section_{nullptr};
  std::atomic<std::int64_t> sections_{0}, begun_{0}, step_{0};
  std::unique_ptr<SaveWatch> watch_;
};

}  // namespace shardwright::exec
