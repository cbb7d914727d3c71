// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_cache.h"

#include <map>
#include <tuple>
#include <unordered_map>

#include "sim/program/list_key.h"

namespace shardwright::sim {

namespace {

auto key_of(const Plan& plan) {
  return std::make_tuple(plan.micro_batch, plan.seq_len, plan.recompute, plan.pieces,
                         plan.attention, plan.deterministic, plan.param_dtype, plan.loss_chunks,
                         plan.reduce_dtype);
}

}  // namespace

struct ProgramCache::Table {
  std::map<decltype(key_of(Plan{})), LayerPrograms> programs;
  std::unordered_map<ListKey, LayerPrograms, ListKeyHash> lists;
};

ProgramCache::ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu)
    : model_(model), stack_(stack), gpu_(gpu), table_(std::make_unique<Table>()) {}
ProgramCache::~ProgramCache() = default;

const LayerPrograms& ProgramCache::at(const Plan& plan) {
  if (stack_.parallel.always || !beyond_data_parallel(plan).empty() || model_.is_moe()) {
    const ListKey key(plan);
    const auto known = table_->lists.find(key);
    if (known != table_->lists.end()) return known->second;
    return table_->lists.emplace(key, LayerPrograms(model_, plan, stack_, gpu_)).first->second;
  }
  const auto key = key_of(plan);
  const auto known = table_->programs.find(key);
  if (known != table_->programs.end()) return known->second;
  return table_->programs.emplace(key, LayerPrograms(model_, plan, stack_)).first->second;
}

}  // namespace shardwright::sim
