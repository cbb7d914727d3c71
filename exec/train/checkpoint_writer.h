// SPDX-License-Identifier: Apache-2.0
// Writes one rank's file of a checkpoint while training goes on.
//
// start() takes the snapshot and returns at once; a thread writes it and computes its checksum.
// state() tells how far it is, so that ranks can agree, at the end of a step, that a checkpoint is
// complete. Only one is written at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "exec/train/checkpoint.h"
#include "exec/train/train_state.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
