// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/lower.h"

#include <algorithm>

#include "sim/core/workspace.h"
#include "sim/strategies/states.h"
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

void write_forward(StepWriter& w, ShardingStrategy& strategy, std::int32_t last_unit) {
  for (std::int32_t unit = 0; unit <= last_unit; ++unit) {
    w.begin_block(unit, 1, Phase::kForward);
    strategy.before_forward(w);
    w.compute_pass(w.forward_pass());
    strategy.after_forward(w);
    w.end_block();
    while (unit < last_unit && w.extend_to(unit + 1)) ++unit;
  }
}

void write_backward(StepWriter& w, ShardingStrategy& strategy, std::int32_t last_unit) {
  for (std::int32_t unit = last_unit; unit >= 0; --unit) {
    w.begin_block(unit, -1, Phase::kBackward);
    strategy.before_backward(w);
    w.compute_pass(w.backward_pass());
    strategy.after_backward(w);
    w.end_block();
    while (unit > 0 && w.extend_to(unit - 1)) --unit;
  }
}

void write_micro_steps(StepWriter& w, ShardingStrategy& strategy, bool first, bool last,
                       std::int32_t repeats) {
  Schedule& schedule = w.schedule();
  Section section;
  section.first_block = static_cast<std::uint32_t>(schedule.blocks.size());
  section.repeats = repeats;
  w.set_micro_step(first, last);
  const std::int32_t head = schedule.head_unit();
  write_forward(w, strategy, head);
  write_backward(w, strategy, head);
  w.begin_block(0, 1, Phase::kReduce);
  strategy.end_micro_step(w);
  w.end_block();
  section.block_count = static_cast<std::uint32_t>(schedule.blocks.size()) - section.first_block;
  schedule.sections.push_back(section);
}

/// Gradient norm, clip and update of the owned shard.
void write_optimizer(StepWriter& w, ShardingStrategy& strategy) {
  const Plan& plan = w.plan();
  const Stack& stack = w.stack();
  Schedule& schedule = w.schedule();
  const bool replicated = plan.strategy == Strategy::kSingle || plan.strategy == Strategy::kDdp;
  const std::int64_t owned = replicated ? w.total_elements() : w.total_elements() / w.shard_ranks();
  const std::int64_t master = bytes_of(plan.master_dtype);
  // A flat shard is a few tensors, per-parameter sharding has one for each matrix.
  const std::int64_t tensors =
      plan.strategy == Strategy::kYafsdp || plan.strategy == Strategy::kYafsdpZero2
          ? 2
          : schedule.layers + 2;
  Section section;
  section.first_block = static_cast<std::uint32_t>(schedule.blocks.size());
  w.begin_block(0, 1, Phase::kOptimizer);
  Op& norm = w.memory_op(OpKind::kGradientNorm, 0, Phase::kOptimizer, MemoryClass::kStream,
                         static_cast<std::int64_t>(stack.gradient_norm_bytes_per_parameter / 4.0 *
                                                   static_cast<double>(master * owned)),
                         0);
  norm.work.kernels = static_cast<std::uint16_t>(std::min<std::int64_t>(tensors, 0xffff));
  for (int i = 1; i < stack.host.step_synchronizations; ++i) w.synchronize(Phase::kOptimizer);
  // The native update multiplies by the clipping factor as it reads the gradient.
  const bool native = stack.memory == MemoryManager::kStatic;
  w.memory_op(OpKind::kClip, 0, Phase::kOptimizer, MemoryClass::kScale,
              native ? 0 : 2 * master * owned, 0);
  const double state_width =
      (2.0 * static_cast<double>(bytes_of(plan.moment_dtype)) + static_cast<double>(master)) / 12.0;
  const double optimizer_bytes =
      stack.optimizer.bytes_per_parameter * state_width * static_cast<double>(owned);
  Op& update = w.memory_op(OpKind::kOptimizer, 0, Phase::kOptimizer, MemoryClass::kStream,
                           static_cast<std::int64_t>(optimizer_bytes), 0);
  update.work.efficiency = stack.optimizer.efficiency;
  update.work.kernels = static_cast<std::uint16_t>(std::min<std::int64_t>(
      stack.optimizer.foreach
          ? std::max<std::int64_t>(1, stack.optimizer.kernels_per_tensor * tensors / 32)
          : stack.optimizer.kernels_per_tensor * tensors,
      0xffff));
  const auto temporary = static_cast<std::int64_t>(stack.optimizer.temporary_master_copies *
                                                   static_cast<double>(master * owned));
  w.acquire(kOptimizerTemporary, 0, temporary, 0, MemoryCategory::kOptimizer);
  w.release(kOptimizerTemporary, 0);
  strategy.after_optimizer(w);
  if (stack.host.step_synchronizations > 0) w.synchronize(Phase::kOptimizer);
  w.end_block();
  section.block_count = static_cast<std::uint32_t>(schedule.blocks.size()) - section.first_block;
  schedule.sections.push_back(section);
}

}  // namespace

std::unique_ptr<ShardingStrategy> make_strategy(const Plan& plan, const Stack& stack) {
  const bool native = stack.memory == MemoryManager::kStatic;
  switch (plan.strategy) {
    case Strategy::kSingle:
      return make_single();
    case Strategy::kDdp:
      return make_ddp();
    case Strategy::kZero1:
      return make_zero(1);
    case Strategy::kZero2:
      return make_zero(2);
    case Strategy::kZero3:
      return native ? make_flat_sharded(true, false) : make_zero(3);
    case Strategy::kFsdp1:
      return native ? make_flat_sharded(true, false) : make_fsdp1(true, false);
    case Strategy::kFsdp1GradOp:
      return native ? make_flat_sharded(false, false) : make_fsdp1(false, false);
    case Strategy::kFsdp2:
      return native ? make_flat_sharded(true, false) : make_fsdp2(true, false);
    case Strategy::kFsdp2NoReshard:
      return native ? make_flat_sharded(false, false) : make_fsdp2(false, false);
    case Strategy::kHsdp:
      if (native) return make_flat_sharded(true, true);
      return stack.hsdp_on_fsdp1 ? make_fsdp1(true, true) : make_fsdp2(true, true);
    case Strategy::kYafsdp:
      return make_yafsdp(true);
    case Strategy::kYafsdpZero2:
      return make_yafsdp(false);
  }
  return make_single();
}

void lower(const Model& model, const Plan& plan, const Stack& stack, std::int64_t gpus_per_node,
           const LayerPrograms& programs, Schedule& out) {
  const std::unique_ptr<ShardingStrategy> strategy = make_strategy(plan, stack);
  StepWriter w(model, plan, stack, gpus_per_node, programs, out);
  strategy->declare(w);
  if (stack.memory == MemoryManager::kStatic) {
    w.persistent(MemoryCategory::kWorkspace, plan_workspace(model, plan).size_bytes, "workspace");
  }
  Section prologue;
  w.begin_block(0, 1, Phase::kPrepare);
  w.host_work(stack.host.step_s, Phase::kPrepare);
  strategy->begin_step(w);
  w.end_block();
  prologue.block_count = static_cast<std::uint32_t>(out.blocks.size());
  out.sections.push_back(prologue);
  const auto micro_steps = static_cast<std::int32_t>(plan.grad_accum);
  if (micro_steps == 1) {
    write_micro_steps(w, *strategy, true, true, 1);
  } else {
    write_micro_steps(w, *strategy, true, false, 1);
    if (micro_steps > 2) write_micro_steps(w, *strategy, false, false, micro_steps - 2);
    write_micro_steps(w, *strategy, false, true, 1);
  }
  write_optimizer(w, *strategy);
}

Schedule lower(const Model& model, const Plan& plan, const Stack& stack,
               std::int64_t gpus_per_node) {
  Schedule out;
  const LayerPrograms programs(model, plan, stack);
  lower(model, plan, stack, gpus_per_node, programs, out);
  return out;
}

}  // namespace shardwright::sim
