// SPDX-License-Identifier: Apache-2.0
// The few numbers that ranks exchange once a step, and what follows from them: the loss, the
// gradient norm and the factor by which gradients are multiplied in the update.
//
// Gradients are sums over tokens until the very end, where they are divided once by the number of
// counted tokens of the whole step. The sum of squares is exact and losses are added in the order
// of micro-batches, so the results do not depend on how many ranks there are.
#pragma once

#include <cstdint>

#include "sim/core/workspace.h"

namespace shardwright::exec {

/// Loss of one micro-batch.
struct LossSums {
  double loss = 0;          // sum over counted tokens, in nats
  std::int64_t tokens = 0;  // counted ones
};

/// One record per rank of the world, as plan_workspace lays them out: kExactSumWords words, then
/// LossSums of every micro-batch. Ranks leave out what others count: zero is in its place.
struct StepRecords {
  const std::int64_t* data = nullptr;
  std::int64_t words = 0;  // 8-byte words of a record
  std::int64_t world_ranks = 1;
  std::int64_t micro_steps = 1;

  const std::int64_t* squares(std::int64_t rank) const { return data + rank * words; }
  const LossSums& loss(std::int64_t rank, std::int64_t micro_step) const {
    return reinterpret_cast<const LossSums*>(data + rank * words + kExactSumWords)[micro_step];
  }
};

struct ClipOptions {
  double max_norm = 0;    // 0: no clipping
  double skip_above = 0;  // no update when the norm is larger; 0: always
};

struct StepTotals {
  double loss = 0;  // sum over the counted tokens of the step
  std::int64_t tokens = 0;
  double gradient_norm = 0;  // of the mean loss
  double scale = 0;          // of gradient sums in the update; not finite: no update
  double unused[4] = {0, 0, 0, 0};
};
static_assert(sizeof(LossSums) == 16 && sizeof(StepTotals) == 64);

/// Adds up in the order of micro-batches: micro-batch m of rank r is number m * world_ranks + r.
StepTotals total(const StepRecords& records, const ClipOptions& options);

}  // namespace shardwright::exec
