// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs of their own, connected by NCCL: processes that run or a launcher started, or
// threads of this one.
#pragma once

#include <functional>

#include "cli/run/ranks.h"
#include "exec/communicator.h"
#include "exec/device.h"

namespace shardwright::cli {

/// Trains as rank `rank`; the rank of its process that a person sees gets the observer.
using RankBody = std::function<RunOutcome(exec::Device& device, exec::RankGroups groups, int rank,
                                          exec::TrainObserver* observer)>;

/// Rank 0's outcome, or this process's. Throws Error: "rank 2 of 4: ..." is the rank that failed
/// first.
RunOutcome run_nccl(const RunOptions& options, const std::vector<Schedule>& stages,
                    exec::TrainObserver& observer, const RankBody& body);

}  // namespace shardwright::cli
