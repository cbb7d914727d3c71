// SPDX-License-Identifier: Apache-2.0
// A model, plans and a machine for tests of model-parallel plans.
#pragma once

#include "tests/sim/prediction.h"

namespace shardwright::sim {

inline Model llama_70b() {
  Model model;
  model.name = "llama-3-70b";
  model.family = "llama";
  model.layers = 80;
  model.hidden = 8192;
  model.heads = 64;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn = 28672;
  model.vocab = 128256;
  model.max_positions = 8192;
  return model;
}

inline Plan plan_of(std::int64_t gpus, std::int64_t tp, std::int64_t pp, std::int64_t accum) {
  Plan plan;
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.stack = "megatron-core";
  plan.gpus = gpus;
  plan.parallel.tp = tp;
  plan.parallel.pp = pp;
  plan.grad_accum = accum;
  plan.seq_len = 8192;
  plan.recompute = Recompute::kNone;
  return plan;
}

/// Four stages of four tensor ranks.
inline Plan scheduled(PipelineKind kind, std::int64_t virtual_stages) {
  Plan plan = plan_of(64, 4, 4, 16);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  return plan;
}

inline const profiles::Profile& h100() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  return profile;
}

}  // namespace shardwright::sim
