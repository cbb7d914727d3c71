// SPDX-License-Identifier: Apache-2.0
// YaFSDP v1 (yandex/YaFSDP, ya_fsdp.py): parameters of a unit lie in one padded flat buffer, so
// gathers need no copies; two weight buffers and two gradient buffers rotate; norm weights are one
// unit of their own, gathered once and reduced once; gradients are divided once, at the very end,
// on the shards.
//
// One high-priority stream carries casts and collectives in issue order. A unit's reduce-scatter is
// issued only when its gradient buffer is needed again, two units later, so that backward(i)
// overlaps the cast and reduction of unit i+1 and the gather of unit i-1. The last units of forward
// still own their buffers and are not gathered again. The edge from the shard cast to the first
// gather is ours: the original relies on the host being late.
#include <algorithm>

#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

class Yafsdp final : public ShardingStrategy {
 public:
  explicit Yafsdp(const StrategyInfo& strategy) : strategy_(strategy) {}

  void declare(StepWriter& w) override {
    w.set_layout({.separates_norms = true});
    const Plan& plan = w.plan();
    reshards_ = w.gathered_for(strategy_) == Gathered::kPass;
    buffers_ = plan.buffers;
    window_ = plan.gather_window();
    tied_ = w.tied();
    native_ = w.stack().memory == MemoryManager::kStatic;
    comm_ = w.stream("communication", StreamRole::kCommunication, -1, native_ ? -1 : 0);
    shard_ready_ = w.event("shard_ready");
    norms_ready_ = w.event("norms_ready");
    gathered_ = w.event("gathered");
    forward_done_ = w.event("forward_done");
    backward_done_ = w.event("backward_done");
    gradient_taken_ = w.event("gradient_taken");
    reduced_ = w.event("reduced");

    ShardingFacts facts = facts_of(strategy_, w);
    facts.separates_norms = true;
    facts.keeps_parameters = true;
    facts.keeps_sums = true;
    facts.weights.count = reshards_ ? buffers_ : UnitBuffers::kEveryUnit;
    facts.gradients.count = 2;
    // The flat buffer of units and that of norms.
    facts.update_tensors = 2;
    w.state(facts);
  }

  void begin_step(StepWriter& w) override {
    cast_master(w, w.total_owned(), {shard_ready_, 0});
    const DType dtype = w.plan().param_dtype;
    Op& gather = w.collective(OpKind::kAllGather, comm_, Phase::kPrepare,
                              bytes_of(dtype) * w.norm_elements(), dtype);
    gather.target = kNormUnit;
    gather.waits[0] = {shard_ready_, 0};
    gather.record = {norms_ready_, 0};
    w.wait_on_compute({norms_ready_, 0});
  }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements() == 0) return;
    if (!reshards_ && !w.first_micro_step()) return;
    // The first units find their buffers in use by their own backward of the micro-batch before.
    EventRef released;
    if (reshards_ && w.kind(-window_) != UnitKind::kOutside) {
      released = {forward_done_, offset(-window_)};
    } else if (!w.first_micro_step()) {
      released = {backward_done_, 0};
    }
    gather(w, Phase::kForward, released);
  }

  void after_forward(StepWriter& w) override { w.record_on_compute(forward_done_); }

  void before_backward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements(2) > 0) {
      reduce(w, 2);
      w.wait_on_compute({gradient_taken_, 2});
    }
    // All gradient buffers are free again once the micro-batch before has reduced its norms.
    if (!reshards_ && !w.first_micro_step() && w.at_last_unit()) {
      w.wait_on_compute({reduced_, w.to_first_unit()});
    }
    const bool kept_for_head = tied_ && w.kind() == UnitKind::kEmbedding;
    if (reshards_ && w.elements() > 0 && !kept_for_head && w.elements(buffers_) > 0) {
      gather(w, Phase::kBackward, {backward_done_, offset(window_)});
    }
  }

  void after_backward(StepWriter& w) override {
    const std::int64_t width = bytes_of(w.plan().param_dtype);
    if (w.stack().memory != MemoryManager::kStatic && w.elements() > 0) {
      // Weight gradients leave autograd in tensors of their own.
      w.memory_op(OpKind::kCopyIn, 0, Phase::kBackward, MemoryClass::kCopy, 2 * width * w.trained(),
                  0);
    }
    w.release_weight_gradients();
    w.record_on_compute(backward_done_);
  }

  void end_micro_step(StepWriter& w) override {
    if (w.elements(1) > 0) reduce(w, 1);
    reduce(w, 0);
    reduce_norms(w);
    if (!w.last_micro_step()) return;
    w.wait_on_compute({reduced_, 0});
    const std::int64_t owned = w.total_trained_owned();
    if (native_) return;  // divides when it clips
    const std::int64_t master = bytes_of(w.plan().master_dtype);
    w.memory_op(OpKind::kScale, 0, Phase::kReduce, MemoryClass::kScale, 2 * master * owned,
                master * owned);
  }

 private:
  static std::int8_t offset(int value) { return static_cast<std::int8_t>(value); }

  void gather(StepWriter& w, Phase phase, EventRef released) {
    const DType dtype = w.plan().param_dtype;
    const std::int64_t bytes = w.gathered_bytes(w.elements());
    Op& op = w.collective(OpKind::kAllGather, comm_, phase, bytes, dtype);
    op.waits[0] = released;
    op.record = {gathered_, 0};
    w.wait_on_compute({gathered_, 0});
  }

  void reduce(StepWriter& w, int at) {
    reduce_flat(w, at, w.trained(at), w.trained_owned(at), {backward_done_, offset(at)});
  }

  void reduce_norms(StepWriter& w) {
    reduce_flat(w, kNormUnit, w.norm_elements(), w.norm_elements() / w.shard_ranks(),
                {backward_done_, 0});
  }

  void reduce_flat(StepWriter& w, int at, std::int64_t elements, std::int64_t owned,
                   EventRef ready) {
    const Plan& plan = w.plan();
    const std::int64_t reduced_width = bytes_of(plan.reduce_dtype);
    const std::int64_t master_width = bytes_of(plan.master_dtype);
    const std::int8_t event_offset = at == kNormUnit ? std::int8_t{0} : offset(at);
    if (casts_gradients(w)) {
      Op& cast = w.memory_op(OpKind::kCastGradient, comm_, Phase::kReduce, MemoryClass::kCast,
                             cast_bytes(plan.param_dtype, plan.reduce_dtype) * elements,
                             reduced_width * elements, {ready});
      cast.target = offset(at);
      if (at != kNormUnit) cast.record = {gradient_taken_, event_offset};
    }
    Op& scatter = w.collective(OpKind::kReduceScatter, comm_, Phase::kReduce,
                               reduced_width * elements, plan.reduce_dtype);
    scatter.target = offset(at);
    scatter.waits[0] = ready;
    // The first reduction of a step writes the shard directly, later ones are added to it.
    const bool adds = !w.first_micro_step() || plan.reduce_dtype != plan.master_dtype;
    Op* last = &scatter;
    if (adds) {
      last = &w.memory_op(OpKind::kAccumulate, comm_, Phase::kReduce, MemoryClass::kAdd,
                          (reduced_width + 2 * master_width) * owned, master_width * owned);
      last->target = offset(at);
    }
    if (at == kNormUnit) {
      last->record = {reduced_, 0};
    } else if (!casts_gradients(w)) {
      last->record = {gradient_taken_, event_offset};
    }
  }

  const StrategyInfo& strategy_;
  bool reshards_ = true;
  bool tied_ = false;
  bool native_ = false;
  int buffers_ = 2;
  int window_ = 2;
  std::uint8_t comm_ = 0;
  std::uint8_t shard_ready_ = 0, norms_ready_ = 0, gathered_ = 0, forward_done_ = 0,
               backward_done_ = 0, gradient_taken_ = 0, reduced_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_yafsdp(const StrategyInfo& strategy, const Stack&) {
  return std::make_unique<Yafsdp>(strategy);
}

}  // namespace shardwright::sim
