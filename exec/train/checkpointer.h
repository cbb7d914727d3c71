// SPDX-License-Identifier: Apache-2.0
// One rank's side of checkpoints during training: snapshot, file, agreement, name.
//
// begin() copies the state and returns. At the end of every step the ranks exchange votes; when all
// files are written, rank 0 gives the checkpoint its name and removes the oldest ones. A failed
// write (a full disk) is reported and leaves earlier checkpoints alone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/train/checkpoint_writer.h"
#include "exec/train/save_watch.h"
#include "exec/train/vote.h"

namespace shardwright::exec {

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
  std::vector<Vote> exchange(const Wish& mine);
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
