// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_cache.h"

#include <unordered_map>
#include <utility>

namespace shardwright::sim {

struct ProgramCache::Table {
  std::unordered_map<ListKey, LayerPrograms, ListKeyHash> programs;
};

ProgramCache::ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu)
    : model_(model),
      stack_(stack),
      gpu_(gpu),
      operations_(std::make_unique<Table>()),
      memory_(std::make_unique<Table>()) {}
ProgramCache::~ProgramCache() = default;

const LayerPrograms& ProgramCache::at(const Plan& plan) {
  return find(*operations_, ListKey(plan), plan, ProgramUse::kOperations);
}

const LayerPrograms& ProgramCache::memory_at(const Plan& plan) {
  ListKey key(plan);
  // Nothing of it changes what lives.
  Parallelism& p = key.plan.parallel;
  p.ep_overlap.reset();
  p.overlap_grad_reduce.reset();
  p.overlap_param_gather.reset();
  p.cuda_graphs.reset();
  return find(*memory_, key, plan, ProgramUse::kMemory);
}

const LayerPrograms& ProgramCache::find(Table& table, const ListKey& key, const Plan& plan,
                                        ProgramUse use) {
  if (const auto known = table.programs.find(key); known != table.programs.end())
    return known->second;
  const auto write = [&] {
    if (plan.recompute != Recompute::kNone) {
      if (const auto plain = nothing_recomputed(plan, stack_)) {
        const ListKey plain_key(*nothing_recomputed(key.plan, stack_));
        return LayerPrograms(find(table, plain_key, *plain, use), model_, plan, stack_, gpu_, use);
      }
    }
    return LayerPrograms(model_, plan, stack_, gpu_, use);
  };
  return table.programs.emplace(key, write()).first->second;
}

}  // namespace shardwright::sim
