// SPDX-License-Identifier: Apache-2.0
// Which buffer holds what of a unit: the executor's side of the strategies in sim/strategies.
//
// Every address follows from strategy, plan and layout alone. Parameters of unit u are gathered
// into rotating buffer u % buffers, gradients are written into rotating buffer u % 2; units that
// must outlive the rotation (norms apart, a tied embedding) have buffers of their own. Strategies
// that do not release parameters have one place for every unit.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/array.h"
#include "exec/layout.h"
#include "exec/step_memory.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

/// Arrays of the whole padded unit, or of the own share of it ("owned").
struct UnitMemory {
  Array parameters;      // what operations read
  Array gradient;        // what backward writes
  Array first_gradient;  // the same in the first micro-step
  Array reduced;         // whole: what ranks reduce; may be `gradient`
  Array owned_source;    // owned: what is gathered; may be a part of `parameters`
  Array owned_master;    // owned: what the optimizer updates; may be `owned_source`
  Array first_moment;    // owned
  Array second_moment;   // owned
  Array gradient_sum;    // owned: the sum over ranks and micro-steps
  Array scratch;         // owned, in the type of `reduced`: for reductions that cannot add in order
  bool rotates = false;  // `parameters` is released for other units
  bool gradient_rotates = false;  // `gradient` is used by other units too
};

enum class ShardingKind {
  kReplicated,      // single, ddp: everything whole on every rank
  kOptimizerState,  // zero1: parameters and gradients whole, updated in parts
  kGradients,       // zero2: parameters whole
  kParameters       // everything in parts; parameters gathered when needed
};

class Sharding {
 public:
  Sharding(const Plan& plan, const Schedule& schedule, const ParameterLayout& layout,
           const StepMemory& memory, std::int64_t shard_rank);

  static ShardingKind kind_of(Strategy strategy);
  /// Norms form a unit of their own.
  static bool separates_norms(Strategy strategy);
  /// Parameters are released after forward and gathered again.
  static bool reshards(Strategy strategy);

  ShardingKind kind() const { return kind_; }
  bool exists(std::int32_t unit) const { return layout_.unit(unit).padded > 0; }
  const UnitMemory& unit(std::int32_t index) const {
    return units_[static_cast<std::size_t>(index)];
  }
  /// Elements of the own share that are parameters, not padding: they come first.
  std::int64_t owned_parameters(std::int32_t unit) const;
  std::int64_t shard_rank() const { return shard_rank_; }
  const ParameterLayout& layout() const { return layout_; }

 private:
  void place_states(const StepMemory& memory);
  void place_parameters(const StepMemory& memory);
  void place_gradients(const StepMemory& memory);
  /// `base` seen as an array over all units, one after the other.
  Array whole_at(void* base, DType dtype, std::int32_t unit) const;
  Array owned_at(void* base, DType dtype, std::int32_t unit) const;

  const Plan plan_;
  const ParameterLayout& layout_;
  ShardingKind kind_;
  std::int64_t shard_rank_;
  std::int64_t shard_ranks_;
  std::vector<UnitMemory> units_;
};

}  // namespace shardwright::exec
