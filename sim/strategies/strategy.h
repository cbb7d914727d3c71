// SPDX-License-Identifier: Apache-2.0
// A sharding strategy writes what happens around a unit's own operations: gathers, casts,
// reductions, and who waits for whom. One file per strategy implements this interface;
// step_writer.h is what it writes with, lower.h drives it over the units of a step.
#pragma once

#include <memory>

#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

class StepWriter;

class ShardingStrategy {
 public:
  virtual ~ShardingStrategy() = default;
  /// Streams, events and tensors that live longer than a step.
  virtual void declare(StepWriter& w) = 0;
  /// Before the first micro-step.
  virtual void begin_step(StepWriter&) {}
  virtual void before_forward(StepWriter&) {}
  virtual void after_forward(StepWriter&) {}
  virtual void before_backward(StepWriter&) {}
  virtual void after_backward(StepWriter&) {}
  /// After the last backward operation of a micro-step.
  virtual void end_micro_step(StepWriter&) {}
  /// After the optimizer has updated its shard.
  virtual void after_optimizer(StepWriter&) {}
};

std::unique_ptr<ShardingStrategy> make_single();
std::unique_ptr<ShardingStrategy> make_ddp();
std::unique_ptr<ShardingStrategy> make_zero(int stage);
std::unique_ptr<ShardingStrategy> make_fsdp1(bool reshards, bool hybrid);
std::unique_ptr<ShardingStrategy> make_fsdp2(bool reshards, bool hybrid);
std::unique_ptr<ShardingStrategy> make_yafsdp(bool reshards);
std::unique_ptr<ShardingStrategy> make_flat_sharded(bool reshards, bool hybrid);
std::unique_ptr<ShardingStrategy> make_strategy(const Plan& plan, const Stack& stack);

}  // namespace shardwright::sim
