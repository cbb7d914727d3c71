// SPDX-License-Identifier: Apache-2.0
// Layer programs by what they depend on, so that plans which differ in anything else share them.
//
// A field of Plan that LayerPrograms begins to read belongs into the key of program_cache.cc:
// bounds and predictions both ask here, so they cannot disagree about it.
#pragma once

#include <memory>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"
#include "sim/program/list_key.h"

namespace shardwright::sim {

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
