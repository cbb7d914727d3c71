// SPDX-License-Identifier: Apache-2.0
// PyTorch FSDP2 (fully_shard) as torchtitan uses it: per-parameter sharding, so a gather is copied
// in from the shards and copied out into parameters; the reduction's input is copied in, with the
// cast fused, on the compute stream. No host blocking, no record_stream; gathers and reductions
// share one communicator.
//
// A gather may start once the previous one has been copied out; the next reduction's input may be
// written once the previous reduction has ended. Hybrid sharding all-reduces the reduced shards
// across groups. The native stack runs the same order with flat units: flat_sharded.cc.
#include "sim/strategies/fsdp2.h"

#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

void Fsdp2::declare(StepWriter& w) {
  w.set_layout({.wraps_embedding_and_head = w.stack().wraps_embedding_and_head, .pads_rows = true});
  reshards_ = w.gathered_for(strategy_) == Gathered::kPass;
  copy_in_ = w.stream("copy-in", StreamRole::kSide, -1);
  comm_ = w.stream("communication", StreamRole::kCommunication, -1);
  if (hybrid_) replicate_ = w.stream("all-reduce", StreamRole::kCommunication, 0);
  shard_ready_ = w.event("shard_ready");
  gathered_ = w.event("gathered");
  copied_out_ = w.event("copied_out");
  reduce_ready_ = w.event("reduce_ready");
  reduced_ = w.event("reduced");
  finished_ = w.event("finished");
  copied_in_ = w.event("copied_in");
  w.state(facts_of(strategy_, w));
}

void Fsdp2::begin_step(StepWriter& w) {
  // Marks the optimizer's last write; copy-in waits for it.
  w.op(OpKind::kHostWork, 0, Phase::kPrepare).record = {shard_ready_, 0};
}

void Fsdp2::before_forward(StepWriter& w) {
  w.unit_hook();
  if (w.elements() == 0 || (!reshards_ && !w.first_micro_step())) return;
  gather_shards(w, 0, Phase::kForward, {copied_out_, -1});
  copy_out(w);
}

void Fsdp2::after_forward(StepWriter& w) {
  if (w.elements() == 0) return;
  if (reshards_ && !is_root(w, 0)) w.release(Tensor::kGathered, 0);
}

void Fsdp2::before_backward(StepWriter& w) {
  w.unit_hook();
  if (!reshards_) return;
  if (w.at_last_unit() && w.elements() > 0) regather(w, 0, {});
  if (w.elements() > 0 && !is_root(w, 0)) copy_out(w);
  if (w.elements(-1) > 0 && !is_root(w, -1)) {
    regather(w, -1, w.elements() > 0 ? EventRef{copied_out_, 0} : EventRef{});
  }
}

void Fsdp2::after_backward(StepWriter& w) {
  const std::int64_t elements = w.trained();
  const bool frees = w.elements() > 0 && (reshards_ || w.last_micro_step());
  if (elements == 0) {  // frozen
    if (frees) w.release(Tensor::kGathered, 0);
    return;
  }
  const Plan& plan = w.plan();
  const std::int64_t width = bytes_of(plan.param_dtype);
  const std::int64_t reduced_width = bytes_of(plan.reduce_dtype);
  const std::int64_t master_width = bytes_of(plan.master_dtype);
  const std::int64_t owned = w.trained_owned();
  const bool skips = w.skips_reductions();
  if (skips && !w.last_micro_step()) {
    accumulate_whole(w);
    return;
  }
  if (w.elements(1) > 0) w.wait_on_compute({reduced_, 1});
  // Weight gradients are copied, cast on the way, into the reduction's input; freed parameters
  // come first.
  w.memory_op(OpKind::kCopyIn, 0, Phase::kReduce, MemoryClass::kCopy,
              (width + (skips ? 2 : 1) * reduced_width) * elements, 0)
      .record = {reduce_ready_, 0};
  if (frees) w.release(Tensor::kGathered, 0);
  w.acquire(Tensor::kReduceInput, 0, reduced_width * elements, 0, MemoryCategory::kGradientBuffers);
  w.release_weight_gradients();
  if (skips) w.release(Tensor::kFullGradient, 0);
  Op& scatter = w.collective(OpKind::kReduceScatter, comm_, Phase::kReduce,
                             reduced_width * elements, plan.reduce_dtype);
  scatter.waits[0] = {reduce_ready_, 0};
  scatter.record = {reduced_, 0};
  w.acquire(Tensor::kReduceOutput, 0, reduced_width * owned, comm_,
            MemoryCategory::kGradientBuffers);
  w.release(Tensor::kReduceInput, 0);
  EventRef ready{reduced_, 0};
  std::uint8_t last_stream = comm_;
  if (hybrid_ && w.replicate_ranks() > 1) {
    Op& all_reduce = w.collective(OpKind::kAllReduce, replicate_, Phase::kReduce,
                                  reduced_width * owned, plan.reduce_dtype, CommGroup::kReplicate);
    all_reduce.waits[0] = ready;
    last_stream = replicate_;
  }
  // The reduced shard becomes the gradient, or is cast and added to it.
  const bool accumulates = !w.first_micro_step() && !skips;
  const bool converts = plan.reduce_dtype != plan.master_dtype;
  const std::int64_t bytes =
      (accumulates ? 3 * master_width : 0) + (converts ? reduced_width + master_width : 0);
  w.memory_op(OpKind::kAccumulate, last_stream, Phase::kReduce, MemoryClass::kAdd, bytes * owned,
              master_width * owned)
      .record = {finished_, 0};
  if (!accumulates)
    w.acquire(Tensor::kShardGradient, 0, master_width * owned, comm_, MemoryCategory::kGradients);
  w.release(Tensor::kReduceOutput, 0);
}

void Fsdp2::accumulate_whole(StepWriter& w) {
  const std::int64_t elements = w.trained();
  const std::int64_t width = bytes_of(w.plan().param_dtype);
  const std::int64_t kept = bytes_of(w.plan().reduce_dtype);
  w.memory_op(OpKind::kAccumulate, 0, Phase::kReduce, MemoryClass::kAdd,
              (width + (w.first_micro_step() ? 1 : 2) * kept) * elements, kept * elements);
  if (reshards_) w.release(Tensor::kGathered, 0);
  if (w.first_micro_step())
    w.acquire(Tensor::kFullGradient, 0, kept * elements, 0, MemoryCategory::kGradients);
  w.release_weight_gradients();
}

void Fsdp2::end_micro_step(StepWriter& w) {
  if (w.last_micro_step()) w.wait_on_compute({finished_, 0});
}

void Fsdp2::after_optimizer(StepWriter& w) {
  w.release_shard_gradients();
}

bool Fsdp2::is_root(StepWriter& w, int offset) {
  return w.kind(offset) == UnitKind::kEmbedding && w.tied();
}
void Fsdp2::regather(StepWriter& w, int offset, EventRef after) {
  gather_shards(w, offset, Phase::kBackward, after);
}

void Fsdp2::gather_shards(StepWriter& w, int offset, Phase phase, EventRef after) {
  const Plan& plan = w.plan();
  const std::int64_t owned = w.owned(offset);
  const std::int64_t cast =
      has_compute_copy(plan) ? cast_bytes(plan.master_dtype, plan.param_dtype) : 0;
  gather(w, offset, phase, (cast + 2 * bytes_of(plan.param_dtype)) * owned, {shard_ready_, 0},
         after, CommGroup::kShard);
}

void Fsdp2::gather(StepWriter& w, int offset, Phase phase, std::int64_t copied_bytes,
                   EventRef ready, EventRef after, CommGroup group) {
  const DType dtype = w.plan().param_dtype;
  const std::int64_t bytes = w.gathered_bytes(w.elements(offset));
  const auto at = static_cast<std::int8_t>(offset);
  Op& in = w.memory_op(OpKind::kCastShard, copy_in_, phase, MemoryClass::kCast, copied_bytes, 0,
                       {ready, after});
  in.target = at;
  in.record = {copied_in_, at};
  w.acquire(Tensor::kGatherOutput, offset, bytes, copy_in_, MemoryCategory::kGatherBuffers);
  Op& op = w.collective(OpKind::kAllGather, comm_, phase, bytes, dtype, group);
  op.target = at;
  op.waits[0] = {copied_in_, at};
  op.record = {gathered_, at};
}

void Fsdp2::copy_out(StepWriter& w) {
  const std::int64_t width = bytes_of(w.plan().param_dtype);
  w.wait_on_compute({gathered_, 0});
  w.memory_op(OpKind::kCopyOut, 0, Phase::kForward, MemoryClass::kCopy, 2 * width * w.elements(), 0)
      .record = {copied_out_, 0};
  w.acquire(Tensor::kGathered, 0, w.unsharded_bytes(w.elements()), 0,
            MemoryCategory::kGatherBuffers);
  w.release(Tensor::kGatherOutput, 0);
}

std::unique_ptr<ShardingStrategy> make_fsdp2(const StrategyInfo& strategy, const Stack& stack) {
  if (stack.memory == MemoryManager::kStatic) return make_flat_sharded(strategy, stack);
  return std::make_unique<Fsdp2>(strategy);
}

}  // namespace shardwright::sim
