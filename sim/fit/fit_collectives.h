// SPDX-License-Identifier: Apache-2.0
// Fits the one-node curves of sim/cost/collectives.h to nccl-tests measurements of one GPU kind.
//
// One set of parameters serves all_gather, reduce_scatter and all_reduce on any number of ranks:
// what differs between them is the number of steps, the bytes on the wire and the rank's own part,
// which are known. That is what lets the curves extend to group sizes and sizes that nobody
// measured. Objective and held-out split as in fit_gemm.h; a faint pull towards NCCL's own table
// keeps parameters that the rows do not determine physical.
#pragma once

#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/score/kernel_tables.h"

namespace shardwright::sim {

struct CollectiveFit {
  profiles::CollectiveParams params;  ///< nominal rates, channels and table as in `start`
  profiles::ErrorSummary in_sample;
  profiles::ErrorSummary held_out;
};

/// `rows` are of one GPU kind and one node; at least 30 of them.
CollectiveFit fit_collectives(const std::vector<CollectiveRow>& rows,
                              const profiles::CollectiveParams& start);

}  // namespace shardwright::sim
