// Ranks on GPUs of their own, connected by NCCL: threads of this process, or processes that a
// launcher started.
#pragma once

#include "cli/run_ranks.h"

namespace shardwright::cli {

/// Rank 0's outcome, or this process's. Throws Error: "rank 2 of 4: ..." is the rank that failed
/// first.
RunOutcome run_nccl(const RunOptions& options, const Schedule& schedule, const exec::Data& data,
                    exec::TrainObserver& observer);

}  // namespace shardwright::cli
