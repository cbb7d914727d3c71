// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_cache.h"

#include <unordered_map>

#include "sim/program/list_key.h"

namespace shardwright::sim {

struct ProgramCache::Table {
  std::unordered_map<ListKey, LayerPrograms, ListKeyHash> programs;
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

}  // namespace shardwright::sim
