// SPDX-License-Identifier: Apache-2.0
// Parameters whole on every rank: `single` (one rank, no communication) and `ddp` (gradients
// all-reduced in buckets while backward runs, only in the last micro-batch).
//
// PyTorch stacks keep fp32 parameters and cast them under autocast, once a forward pass; their
// gradients come to life in backward and die with zero_grad(set_to_none). The native stack holds a
// compute copy, the master and the sums of gradients for the whole step.
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

constexpr std::int64_t kBucketBytes = 25LL * 1024 * 1024;  // DDP's default bucket_cap_mb

class Replicated final : public ShardingStrategy {
 public:
  explicit Replicated(const StrategyInfo& strategy)
      : strategy_(strategy), reduces_(!strategy.one_rank) {}

  void declare(StepWriter& w) override {
    native_ = w.stack().memory == MemoryManager::kStatic;
    w.set_layout({});
    comm_ = reduces_ ? w.stream("communication", StreamRole::kCommunication, 0, native_ ? -1 : 0)
                     : std::uint8_t{0};
    cast_ = w.event("cast");
    backward_done_ = w.event("backward_done");
    reduced_ = w.event("reduced");
    ShardingFacts facts = facts_of(strategy_, w);
    facts.keeps_parameters = native_;
    facts.keeps_sums = native_;
    facts.sum_dtype = w.plan().reduce_dtype;
    if (native_) sum_whole_gradients(facts, w, 1);
    if (reduces_ && !native_)
      facts.all_reduce_bucket_bytes = gradient_width(w.plan()) * w.total_trained();
    w.state(facts);
  }

  void begin_step(StepWriter& w) override {
    const Plan& plan = w.plan();
    if (!native_ || !has_compute_copy(plan)) return;
    w.memory_op(OpKind::kCastShard, 0, Phase::kPrepare, MemoryClass::kCast,
                cast_bytes(plan.master_dtype, plan.param_dtype) * w.total_elements(), 0);
  }

  void before_forward(StepWriter& w) override {
    const Plan& plan = w.plan();
    // What is frozen is kept in the type that it is computed with.
    if (native_ || !has_compute_copy(plan) || w.trained() == 0) return;
    w.memory_op(OpKind::kCastShard, 0, Phase::kForward, MemoryClass::kCast,
                cast_bytes(plan.master_dtype, plan.param_dtype) * w.trained(), 0);
    w.acquire(Tensor::kCastedShard, 0, bytes_of(plan.param_dtype) * w.trained(), 0,
              MemoryCategory::kParameters);
  }

  void after_backward(StepWriter& w) override {
    const Plan& plan = w.plan();
    const std::int64_t elements = w.trained();
    if (elements > 0) {
      add_to_whole_sums(w, OpKind::kAccumulate, elements);
      if (!native_ && w.first_micro_step())
        w.acquire(Tensor::kFullGradient, 0, gradient_width(plan) * elements, 0,
                  MemoryCategory::kGradients);
      if (!native_ && has_compute_copy(plan)) w.release(Tensor::kCastedShard, 0);
      w.release_weight_gradients();
    }
    w.record_on_compute(backward_done_);
    if (!reduces_ || !w.last_micro_step() || elements == 0) return;
    const std::int64_t bytes = gradient_width(plan) * elements;
    Op& reduce = w.collective(OpKind::kAllReduce, comm_, Phase::kReduce, bytes, plan.reduce_dtype);
    reduce.work.group = CommGroup::kReplicate;
    reduce.work.kernels = static_cast<std::uint16_t>(
        std::max<std::int64_t>(1, ceil_div(bytes, native_ ? bytes : kBucketBytes)));
    reduce.waits[0] = {backward_done_, 0};
    reduce.record = {reduced_, 0};
  }

  void end_micro_step(StepWriter& w) override {
    if (reduces_ && w.last_micro_step()) w.wait_on_compute({reduced_, 0});
  }

  void after_optimizer(StepWriter& w) override {
    if (!native_)
      w.release_all(Tensor::kFullGradient, gradient_width(w.plan()) * w.total_trained(),
                    MemoryCategory::kGradients);
  }

  bool can_skip_reductions() const override { return true; }

 private:
  /// Gradients are held in the wider of what is reduced and what is updated.
  static std::int64_t gradient_width(const Plan& plan) { return bytes_of(plan.reduce_dtype); }

  const StrategyInfo& strategy_;
  bool reduces_;
  bool native_ = false;
  std::uint8_t comm_ = 0, cast_ = 0, backward_done_ = 0, reduced_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_single(const StrategyInfo& strategy, const Stack&) {
  return std::make_unique<Replicated>(strategy);
}
std::unique_ptr<ShardingStrategy> make_ddp(const StrategyInfo& strategy, const Stack&) {
  return std::make_unique<Replicated>(strategy);
}

}  // namespace shardwright::sim
