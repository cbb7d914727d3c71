// SPDX-License-Identifier: Apache-2.0
// A plan without what no list of a unit's operations depends on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "sim/core/plan.h"

namespace shardwright::sim {

struct ListKey {
  explicit ListKey(Plan of) : plan(std::move(of)) {
    plan.strategy = Strategy::kSingle;
    plan.gpus = 1;
    plan.shard_group = 0;
    plan.buffers = Plan{}.buffers;
    plan.prefetch = Plan{}.prefetch;
    plan.allocator = AllocatorKind::kStack;
    plan.moment_dtype = Plan{}.moment_dtype;
    plan.ckpt_stride = 1;
    plan.grad_accum = std::min<std::int64_t>(plan.grad_accum, 2);
    plan.ckpt_layers = plan.recompute == Recompute::kNone || plan.ckpt_layers == 0 ? 0 : 1;
    plan.parallel.pp = plan.parallel.virtual_stages = 1;
    plan.parallel.pp_schedule.reset();
    plan.parallel.pp_layout.clear();
  }
  bool operator==(const ListKey&) const = default;

  Plan plan;
};

struct ListKeyHash {
  std::size_t operator()(const ListKey& key) const {
    const Parallelism& p = key.plan.parallel;
    std::size_t seed = 0;
    for (const std::int64_t value :
         {p.tp, p.cp, p.ep, p.etp, key.plan.micro_batch, key.plan.ckpt_layers, key.plan.grad_accum,
          static_cast<std::int64_t>(key.plan.recompute), std::int64_t{key.plan.pieces}}) {
      seed ^=
          std::hash<std::int64_t>{}(value) + 0x9e3779b97f4a7c15ULL + (seed << 6U) + (seed >> 2U);
    }
    return seed;
  }
};

}  // namespace shardwright::sim
