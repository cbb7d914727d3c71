// SPDX-License-Identifier: Apache-2.0
// A sharding strategy writes what happens around a unit's own operations: gathers, casts,
// reductions, and who waits for whom. One file per strategy implements this interface and a line of
// sim/core/strategies.def names it; step_writer.h is what it writes with, lower.h drives it over
// the units of a step.
#pragma once

#include <memory>

#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/core/strategy.h"

namespace shardwright::sim {

class StepWriter;

class ShardingStrategy {
 public:
  virtual ~ShardingStrategy() = default;
  /// Streams, events, and what is kept beyond operations (StepWriter::state).
  virtual void declare(StepWriter& w) = 0;
  /// Before the first micro-batch.
  virtual void begin_step(StepWriter&) {}
  virtual void before_forward(StepWriter&) {}
  virtual void after_forward(StepWriter&) {}
  virtual void before_backward(StepWriter&) {}
  virtual void after_backward(StepWriter&) {}
  /// After the last backward operation of a micro-batch.
  virtual void end_micro_step(StepWriter&) {}
  /// After the optimizer has updated its shard.
  virtual void after_optimizer(StepWriter&) {}
  /// Whether gradients may wait, whole, for the last micro-batch (Stack::no_sync).
  virtual bool can_skip_reductions() const { return false; }
};

/// The factories that sim/core/strategies.def names.
#define STRATEGY(id, name, factory, ...) \
  std::unique_ptr<ShardingStrategy> factory(const StrategyInfo& strategy, const Stack& stack);
#include "sim/core/strategies.def"
#undef STRATEGY

/// Any strategy between the stages of a pipeline, as the native stack runs it, and where a plan
/// asks for its sums.
std::unique_ptr<ShardingStrategy> make_whole_sums(const StrategyInfo& strategy);

/// Throws Error when the stack cannot run the plan's strategy.
std::unique_ptr<ShardingStrategy> make_strategy(const Plan& plan, const Stack& stack);

}  // namespace shardwright::sim
