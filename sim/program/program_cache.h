// SPDX-License-Identifier: Apache-2.0
// Layer programs by what they depend on, so that plans which differ in anything else share them.
//
// A field of Plan that LayerPrograms begins to read belongs into the key of program_cache.cc:
// bounds and predictions both ask here, so they cannot disagree about it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"

namespace shardwright::sim {

// A plan without what no list of a unit's operations depends on.

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

/// Not thread-safe.
class ProgramCache {
 public:
  /// Of one model on one stack and GPU, which outlive the cache.
  ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu);
  ProgramCache(Model&&, const Stack&, const Gpu&) = delete;
  ~ProgramCache();

  /// Stays valid as long as the cache.
  const LayerPrograms& at(const Plan& plan);
  /// Of ProgramUse::kMemory.
  const LayerPrograms& memory_at(const Plan& plan);

 private:
  struct Table;
  const LayerPrograms& find(Table& table, const ListKey& key, const Plan& plan, ProgramUse use);
  const Model& model_;
  const Stack& stack_;
  const Gpu& gpu_;
  std::unique_ptr<Table> operations_, memory_;
};

}  // namespace shardwright::sim
