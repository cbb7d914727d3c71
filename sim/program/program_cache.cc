// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_cache.h"

#include <unordered_map>
#include <utility>

#include "sim/program/list_key.h"

namespace shardwright::sim {

struct ProgramCache::Table {
  std::unordered_map<ListKey, LayerPrograms, ListKeyHash> programs, memory;
};

ProgramCache::ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu)
    : model_(model), stack_(stack), gpu_(gpu), table_(std::make_unique<Table>()) {}
ProgramCache::~ProgramCache() = default;

const LayerPrograms& ProgramCache::at(const Plan& plan) {
  const ListKey key(plan);
  const auto known = table_->programs.find(key);
  if (known != table_->programs.end()) return known->second;
  return table_->programs.emplace(key, LayerPrograms(model_, plan, stack_, gpu_)).first->second;
}

const LayerPrograms& ProgramCache::memory_at(const Plan& plan) {
  ListKey key(plan);
  // Nothing of it changes what lives.
  Parallelism& p = key.plan.parallel;
  p.ep_overlap.reset();
  p.overlap_grad_reduce.reset();
  p.overlap_param_gather.reset();
  p.cuda_graphs.reset();
  const auto known = table_->memory.find(key);
  if (known != table_->memory.end()) return known->second;
  LayerPrograms programs(model_, plan, stack_, gpu_, ProgramUse::kMemory);
  return table_->memory.emplace(std::move(key), std::move(programs)).first->second;
}

}  // namespace shardwright::sim
