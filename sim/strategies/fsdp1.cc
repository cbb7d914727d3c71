// SPDX-License-Identifier: Apache-2.0
// PyTorch FSDP1 (FlatParameter): a gather per unit into a fresh flat tensor, weight gradients
// concatenated on the gather stream, cast and pre-divided on a post-backward stream, reduced,
// post-divided.
//
// Four streams of equal priority, so that the full-grid copies alternate with products instead of
// overlapping them; the concatenation of unit i stands behind the gather of unit i-1 on its stream
// and the next unit's backward waits for it; the host blocks so that at most two freed units are
// unacknowledged (limit_all_gathers). BACKWARD_PRE prefetch. SHARD_GRAD_OP keeps the gathered
// parameters until backward. Where gradients wait for the last micro-batch (no_sync) they add up
// whole. Hybrid sharding shards within a group and all-reduces the shards across groups on a stream
// of its own.
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

class Fsdp1 final : public ShardingStrategy {
 public:
  explicit Fsdp1(const StrategyInfo& strategy) : strategy_(strategy), hybrid_(strategy.hybrid) {}

  void declare(StepWriter& w) override {
    w.set_layout({.wraps_embedding_and_head = w.stack().wraps_embedding_and_head});
    gathered_for_ = w.gathered_for(strategy_, Gathered::kMicroStep);
    reshards_ = gathered_for_ == Gathered::kPass;
    const int side = hybrid_ ? -1 : 0;
    unshard_ = w.stream("unshard", StreamRole::kSide, side);
    pre_unshard_ = w.stream("pre-unshard", StreamRole::kSide, side);
    post_backward_ = w.stream("post-backward", StreamRole::kSide, side);
    comm_ = w.stream("communication", StreamRole::kCommunication, 0);
    if (hybrid_) replicate_ = w.stream("all-reduce", StreamRole::kCommunication, 0);
    shard_cast_ = w.event("shard_cast");
    gathered_ = w.event("gathered");
    freed_ = w.event("freed");
    backward_done_ = w.event("backward_done");
    concatenated_ = w.event("concatenated");
    prepared_ = w.event("prepared");
    reduced_ = w.event("reduced");
    replicated_ = w.event("replicated");
    finished_ = w.event("finished");
    w.state(facts_of(strategy_, w));
  }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements() == 0 || (gathered_for_ == Gathered::kStep && !w.first_micro_step())) return;
    const bool prefetches = w.stack().fsdp1_forward_prefetch;
    if (!prefetches || w.at_first_unit()) {
      if (!prefetches) limit(w, -2);
      gather(w, 0, Phase::kForward);
    }
    w.wait_on_compute({gathered_, 0});
    if (prefetches && w.elements(1) > 0) {
      limit(w, -2);
      gather(w, 1, Phase::kForward);
    }
  }

  void after_forward(StepWriter& w) override {
    if (w.elements() == 0) return;
    w.record_on_compute(freed_);
    if (reshards_ && !is_root(w, 0)) w.release(Tensor::kGathered, 0);
  }

  void before_backward(StepWriter& w) override {
    w.unit_hook();
    if (reshards_ && w.kind() == UnitKind::kHead && w.elements() > 0)
      gather(w, 0, Phase::kBackward);
    if (w.elements() > 0) w.wait_on_compute({gathered_, 0});
    if (w.elements(1) > 0) w.wait_on_compute({concatenated_, 1});
    if (reshards_ && w.elements(-1) > 0 && !is_root(w, -1)) {
      if (w.elements(2) > 0) w.host_wait({concatenated_, 2}, w.stack().host.limiter_wakeup_s);
      gather(w, -1, Phase::kBackward);
    }
  }

  void after_backward(StepWriter& w) override {
    const std::int64_t elements = w.trained();
    const bool frees =
        w.elements() > 0 && (gathered_for_ != Gathered::kStep || w.last_micro_step());
    if (elements == 0) {  // frozen
      if (frees) w.release(Tensor::kGathered, 0, unshard_);
      return;
    }
    const Plan& plan = w.plan();
    const std::int64_t width = bytes_of(plan.param_dtype);
    const std::int64_t reduced_width = bytes_of(plan.reduce_dtype);
    const std::int64_t master_width = bytes_of(plan.master_dtype);
    const std::int64_t owned = w.trained_owned();
    const bool skips = w.skips_reductions();
    w.record_on_compute(backward_done_);

    Op& concatenate = w.memory_op(
        OpKind::kConcatenate, unshard_, Phase::kReduce, MemoryClass::kConcatenate,
        2 * width * elements, 0,
        {{backward_done_, 0}, w.elements(-1) > 0 ? EventRef{gathered_, -1} : EventRef{}});
    concatenate.record = {concatenated_, 0};
    const Tensor flat = skips ? Tensor::kFullGradient : Tensor::kFlatGradient;
    if (!skips || w.first_micro_step()) {
      w.acquire(flat, 0, width * elements, unshard_,
                skips ? MemoryCategory::kGradients : MemoryCategory::kGradientBuffers);
    } else {
      add_to_whole(w);
    }
    if (frees) w.release(Tensor::kGathered, 0, unshard_);
    w.release_weight_gradients(unshard_);
    if (skips && !w.last_micro_step()) return;

    if (plan.reduce_dtype != plan.param_dtype) {
      w.memory_op(OpKind::kCastGradient, post_backward_, Phase::kReduce, MemoryClass::kCast,
                  cast_bytes(plan.param_dtype, plan.reduce_dtype) * elements,
                  reduced_width * elements, {{concatenated_, 0}});
      w.acquire(Tensor::kReduceInput, 0, reduced_width * elements, post_backward_,
                MemoryCategory::kGradientBuffers);
      w.release(flat, 0, post_backward_);
    }
    w.memory_op(OpKind::kScale, post_backward_, Phase::kReduce, MemoryClass::kScale,
                2 * reduced_width * elements, reduced_width * elements, {{concatenated_, 0}})
        .record = {prepared_, 0};
    Op& scatter = w.collective(OpKind::kReduceScatter, comm_, Phase::kReduce,
                               reduced_width * elements, plan.reduce_dtype);
    scatter.waits[0] = {prepared_, 0};
    scatter.record = {reduced_, 0};
    w.acquire(Tensor::kReduceOutput, 0, reduced_width * owned, post_backward_,
              MemoryCategory::kGradientBuffers);
    w.release(plan.reduce_dtype != plan.param_dtype ? Tensor::kReduceInput : flat, 0, comm_);
    EventRef ready{reduced_, 0};
    if (hybrid_ && w.replicate_ranks() > 1) {
      Op& all_reduce =
          w.collective(OpKind::kAllReduce, replicate_, Phase::kReduce, reduced_width * owned,
                       plan.reduce_dtype, CommGroup::kReplicate);
      all_reduce.waits[0] = ready;
      all_reduce.record = {replicated_, 0};
      ready = {replicated_, 0};
    }
    const bool accumulates = !w.first_micro_step() && !skips;
    w.memory_op(OpKind::kScale, post_backward_, Phase::kReduce, MemoryClass::kScale,
                (2 * reduced_width +
                 (plan.reduce_dtype != plan.master_dtype ? master_width + reduced_width : 0) +
                 (accumulates ? 3 * master_width : 0)) *
                    owned,
                reduced_width * owned, {ready})
        .record = {finished_, 0};
    if (!accumulates)
      w.acquire(Tensor::kShardGradient, 0, master_width * owned, post_backward_,
                MemoryCategory::kGradients);
    w.release(Tensor::kReduceOutput, 0);
  }

  void end_micro_step(StepWriter& w) override {
    if (w.last_micro_step()) w.wait_on_compute({finished_, 0});
  }

  void after_optimizer(StepWriter& w) override { w.release_shard_gradients(); }

  // SHARD_GRAD_OP would also keep its parameters gathered from step to step then.
  bool can_skip_reductions() const override { return strategy_.reshards; }

 private:
  bool is_root(StepWriter& w, int offset) {
    return w.kind(offset) == UnitKind::kEmbedding && w.tied();
  }

  /// Without synchronization autograd adds to the whole flat gradient, in the type that it computes
  /// in.
  void add_to_whole(StepWriter& w) {
    const std::int64_t bytes = bytes_of(w.plan().param_dtype) * w.trained();
    w.acquire(Tensor::kFlatGradient, 0, bytes, unshard_, MemoryCategory::kGradientBuffers);
    w.memory_op(OpKind::kAccumulate, unshard_, Phase::kReduce, MemoryClass::kAdd, 3 * bytes, bytes)
        .record = {concatenated_, 0};
    w.release(Tensor::kFlatGradient, 0, unshard_);
  }

  /// At most two freed units may be unacknowledged before another gather is issued.
  void limit(StepWriter& w, int offset) {
    if (w.elements(offset) > 0 && !is_root(w, offset)) {
      w.host_wait({freed_, static_cast<std::int8_t>(offset)}, w.stack().host.limiter_wakeup_s);
    }
  }

  void gather(StepWriter& w, int offset, Phase phase) {
    const Plan& plan = w.plan();
    const std::int64_t elements = w.elements(offset);
    const std::int64_t owned = w.owned(offset);
    const auto at = static_cast<std::int8_t>(offset);
    if (has_compute_copy(plan)) {
      Op& cast = w.memory_op(OpKind::kCastShard, pre_unshard_, phase, MemoryClass::kCast,
                             cast_bytes(plan.master_dtype, plan.param_dtype) * owned,
                             bytes_of(plan.master_dtype) * owned);
      cast.target = at;
      cast.record = {shard_cast_, at};
      w.acquire(Tensor::kCastedShard, offset, bytes_of(plan.param_dtype) * owned, pre_unshard_,
                MemoryCategory::kParameters);
    }
    Op& op = w.collective(OpKind::kAllGather, comm_, phase, w.gathered_bytes(elements),
                          plan.param_dtype);
    op.target = at;
    op.waits[0] = {shard_cast_, at};
    op.record = {gathered_, at};
    w.acquire(Tensor::kGathered, offset, w.unsharded_bytes(elements), unshard_,
              MemoryCategory::kGatherBuffers);
    if (has_compute_copy(plan)) w.release(Tensor::kCastedShard, offset, comm_);
  }

  const StrategyInfo& strategy_;
  Gathered gathered_for_ = Gathered::kPass;
  bool reshards_ = true, hybrid_;
  std::uint8_t unshard_ = 0, pre_unshard_ = 0, post_backward_ = 0, comm_ = 0, replicate_ = 0;
  std::uint8_t shard_cast_ = 0, gathered_ = 0, freed_ = 0, backward_done_ = 0, concatenated_ = 0,
               prepared_ = 0, reduced_ = 0, replicated_ = 0, finished_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_fsdp1(const StrategyInfo& strategy, const Stack& stack) {
  if (stack.memory == MemoryManager::kStatic) return make_flat_sharded(strategy, stack);
  return std::make_unique<Fsdp1>(strategy);
}

}  // namespace shardwright::sim
