// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a run and waits for them: threads of this process, or processes that MPI
// connects.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "exec/train/trainer.h"
#include "sim/core/schedule.h"

namespace shardwright::cli {

/// Which attention runs on a GPU and why, one sentence. Empty on the host.
struct AttentionNote {
  std::string kernel, why, library;
};

struct RunOutcome {
  AttentionNote attention;
  exec::TrainResult train;
  Bytes planned_bytes = 0;  // of one rank's device memory
  Bytes peak_bytes = 0;     // measured
  std::string resumed;      // the checkpoint's folder; empty: from the beginning
};

/// What runs, and the checkpoint that it goes on from or null.
using OnReady = std::function<void(const AttentionNote&, const exec::Checkpoint*)>;

/// `observer` hears of rank 0, and so does `on_ready` before its first step. `resume` holds the
/// checkpoints that the run may go on from, the best first. A rank that fails ends all; its error
/// is thrown, with its rank.
RunOutcome run_ranks(const RunOptions& options, const std::vector<Schedule>& stages,
                     const exec::Data& data, const std::vector<std::filesystem::path>& resume,
                     exec::TrainObserver& observer, const OnReady& on_ready);

/// Starts the ranks and allocates all memory of theirs, no more.
void allocate_ranks(const RunOptions& options, const std::vector<Schedule>& stages,
                    exec::TrainObserver& observer);

}  // namespace shardwright::cli
