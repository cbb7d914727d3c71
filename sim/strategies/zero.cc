// SPDX-License-Identifier: Apache-2.0
// ZeRO stages. Stages 1 and 2 keep whole compute parameters and shard the optimizer (2: and the
// gradients); gradients are reduce-scattered per unit while backward runs, stage 1 only in the last
// micro-batch; updated parameters are gathered after the optimizer (DeepSpeed: exposed) or, on the
// native stack, unit by unit while the next forward runs. Stage 3 is DeepSpeed's: gathers on a
// stream of their own with no dependency on compute, unpacked by a copy, gradients copied into a
// bucket, at most two reductions outstanding before the host blocks. The host waits for the device
// after each backward that reduces (independent_gradient_partition_epilogue of
// runtime/zero/stage_1_and_2.py and stage3.py).
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

constexpr std::int64_t kBucketElements =
    500'000'000;  // DeepSpeed reduce_bucket_size and allgather_bucket_size

class Zero final : public ShardingStrategy {
 public:
  explicit Zero(const StrategyInfo& strategy)
      : strategy_(strategy), stage_(strategy.zero_stage()) {}

  void declare(StepWriter& w) override {
    native_ = w.stack().memory == MemoryManager::kStatic;
    w.set_layout({});
    gather_stream_ =
        w.stream("communication", StreamRole::kCommunication, native_ ? -1 : 0, native_ ? -1 : 0);
    reduce_stream_ = native_ ? gather_stream_ : w.stream("reduce", StreamRole::kSide, 0);
    gathered_ = w.event("gathered");
    unpacked_ = w.event("unpacked");
    backward_done_ = w.event("backward_done");
    bucket_ready_ = w.event("bucket_ready");
    reduced_ = w.event("reduced");
    finished_ = w.event("finished");
    updated_ = w.event("updated");

    ShardingFacts facts = facts_of(strategy_, w);
    facts.keeps_parameters = true;
    facts.keeps_sums = true;
    facts.sum_dtype = w.plan().reduce_dtype;
    if (native_) facts.gradients.count = 2;
    if (native_ && stage_ == 1) sum_whole_gradients(facts, w, 2);
    shares_buffer_ = facts.sums_in_backward;
    if (!native_) facts.gradient_bucket_bytes = 2 * bytes_of(facts.reduce_dtype) * kBucketElements;
    w.state(facts);
  }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements() == 0) return;
    if (stage_ == 3) {
      gather(w, Phase::kForward);
    } else if (native_ && w.first_micro_step()) {
      Op& op = w.collective(OpKind::kAllGather, gather_stream_, Phase::kForward,
                            bytes_of(w.plan().param_dtype) * w.elements(), w.plan().param_dtype);
      op.record = {gathered_, 0};
      w.wait_on_compute({gathered_, 0});
    }
  }

  void after_forward(StepWriter& w) override {
    if (stage_ == 3 && w.elements() > 0 && !holds_tied(w)) w.release(Tensor::kGathered, 0);
  }

  void before_backward(StepWriter& w) override {
    w.unit_hook();
    if (shares_buffer_) {
      if (!w.first_micro_step() && w.at_first_unit())
        w.wait_on_compute({bucket_ready_, w.to_last_unit()});
    } else if (native_ && w.elements(2) > 0) {
      w.wait_on_compute({bucket_ready_, 2});
    }
    if (native_ && !w.first_micro_step() && w.at_last_unit()) {
      w.wait_on_compute({bucket_ready_, w.to_first_unit()});
    }
    if (stage_ == 3 && w.elements() > 0 && !holds_tied(w)) gather(w, Phase::kBackward);
  }

  void after_backward(StepWriter& w) override {
    const std::int64_t elements = w.trained();
    w.record_on_compute(backward_done_);
    if (elements == 0) {  // frozen
      if (stage_ == 3 && w.elements() > 0) w.release(Tensor::kGathered, 0);
      w.release_weight_gradients();
      return;
    }
    const Plan& plan = w.plan();
    const std::int64_t width = bytes_of(gradient_dtype(plan, w.stack()));
    const std::int64_t reduced = bytes_of(plan.reduce_dtype);
    const std::int64_t owned = w.trained_owned();
    // Into the bucket (stage 1 accumulates whole gradients), cast on the way.
    const bool accumulates = stage_ == 1 && !w.first_micro_step() && !w.sums_in_backward();
    const std::int64_t bytes = (width + reduced + (accumulates ? reduced : 0)) * elements;
    const bool copies = !native_ || reduced != width || accumulates;
    // Until the last micro-batch autograd itself adds to the gradients of stage 1.
    const bool adds_up = !native_ && !reduces(w);
    if (adds_up) {
      w.memory_op(OpKind::kAccumulate, 0, Phase::kReduce, MemoryClass::kCopy, bytes, 0);
    } else if (copies) {
      const OpKind kind = native_ && reduced != width ? OpKind::kCastGradient : OpKind::kCopyIn;
      w.memory_op(kind, reduce_stream_, Phase::kReduce, MemoryClass::kCopy, bytes, 0,
                  {{backward_done_, 0}})
          .record = {bucket_ready_, 0};
    }
    if (stage_ == 3) w.release(Tensor::kGathered, 0);
    w.release_weight_gradients(adds_up ? StepWriter::kSameStream : reduce_stream_);
    if (!reduces(w)) return;
    Op& scatter = w.collective(OpKind::kReduceScatter, gather_stream_, Phase::kReduce,
                               reduced * elements, plan.reduce_dtype);
    scatter.waits[0] = {bucket_ready_, 0};
    scatter.waits[1] = {backward_done_, 0};
    // Without a copy it is the reduction that frees the rotating buffer; stage 1 then has used
    // none.
    scatter.record = {copies || stage_ == 1 ? reduced_ : bucket_ready_, 0};
    const bool adds = stage_ > 1 && !w.first_micro_step();
    w.memory_op(OpKind::kAccumulate, reduce_stream_, Phase::kReduce, MemoryClass::kAdd,
                (adds ? 3 : 2) * reduced * owned, 0, {{reduced_, 0}})
        .record = {finished_, 0};
    if (stage_ == 3 && w.elements(2) > 0)
      w.host_wait({reduced_, 2}, w.stack().host.limiter_wakeup_s);
  }

  void end_micro_step(StepWriter& w) override {
    if (w.last_micro_step()) w.wait_on_compute({finished_, 0});
    if (!native_ && reduces(w)) w.synchronize(Phase::kReduce);
  }

  void after_optimizer(StepWriter& w) override {
    if (native_ || stage_ == 3 || w.total_trained() == 0) return;
    const Plan& plan = w.plan();
    const std::int64_t bytes = bytes_of(plan.param_dtype) * w.total_trained();
    w.record_on_compute(updated_);
    Op& op = w.collective(OpKind::kAllGather, gather_stream_, Phase::kOptimizer, bytes,
                          plan.param_dtype);
    op.work.kernels = static_cast<std::uint16_t>(ceil_div(w.total_trained(), kBucketElements));
    op.waits[0] = {updated_, 0};
  }

  bool can_skip_reductions() const override { return stage_ == 1; }

 private:
  bool reduces(const StepWriter& w) const { return stage_ > 1 || w.last_micro_step(); }
  bool holds_tied(StepWriter& w) { return w.kind() == UnitKind::kEmbedding && w.tied(); }

  void gather(StepWriter& w, Phase phase) {
    const std::int64_t width = bytes_of(w.plan().param_dtype);
    Op& op = w.collective(OpKind::kAllGather, gather_stream_, phase, width * w.elements(),
                          w.plan().param_dtype);
    op.record = {gathered_, 0};
    w.acquire(Tensor::kGathered, 0, width * w.elements(), gather_stream_,
              MemoryCategory::kGatherBuffers);
    w.memory_op(OpKind::kCopyOut, gather_stream_, phase, MemoryClass::kCopy,
                2 * width * w.elements(), 0)
        .record = {unpacked_, 0};
    w.wait_on_compute({unpacked_, 0});
  }

  const StrategyInfo& strategy_;
  int stage_;
  bool native_ = false;
  bool shares_buffer_ = false;  // fresh gradients of head and embedding, those of layers need none
  std::uint8_t gather_stream_ = 0, reduce_stream_ = 0;
  std::uint8_t gathered_ = 0, unpacked_ = 0, backward_done_ = 0, bucket_ready_ = 0, reduced_ = 0,
               finished_ = 0, updated_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_zero(const StrategyInfo& strategy, const Stack& stack) {
  const bool native = stack.memory == MemoryManager::kStatic;
  if (native && strategy.shards == Sharded::kParameters) return make_flat_sharded(strategy, stack);
  return std::make_unique<Zero>(strategy);
}

}  // namespace shardwright::sim
