// SPDX-License-Identifier: Apache-2.0
// Plans for models whose layers are of several kinds.
#pragma once

#include <cstdint>
#include <string>

#include "sim/core/plan.h"

namespace shardwright::sim {

/// On 256 tokens, of which nothing is recomputed.
inline Plan hybrid_plan(std::int64_t gpus, Strategy strategy, const std::string& stack) {
  Plan plan;
  plan.gpus = gpus;
  plan.strategy = strategy;
  plan.stack = stack;
  plan.seq_len = 256;
  plan.recompute = Recompute::kNone;
  plan.ckpt_layers = 0;
  return plan;
}

}  // namespace shardwright::sim
