// SPDX-License-Identifier: Apache-2.0
// Full sharding as the native executor runs it (plans zero3, fsdp1, fsdp2, hsdp on the native
// stack): flat padded units gathered straight into rotating buffers, weight gradients written
// straight into one of two rotating gradient buffers, the reduction issued right after a unit's
// backward. The order of collectives is FSDP2's (gather i-1, reduce i, gather i-2 ...); the buffers
// and hand-over events are YaFSDP's, so nothing is copied, allocated or waited for by the host.
// Without resharding, parameters stay gathered until the step's last backward.
#include <algorithm>

#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

class FlatSharded final : public ShardingStrategy {
 public:
  explicit FlatSharded(const StrategyInfo& strategy)
      : strategy_(strategy), hybrid_(strategy.hybrid) {}

  void declare(StepWriter& w) override {
    w.set_layout({});
    const Plan& plan = w.plan();
    const Layout& layout = w.layout();
    const bool in_domain =
        layout.members_in_domain(CommGroup::kShard) == layout.group(CommGroup::kShard).size;
    if (strategy_.bucketed && in_domain)
      registered_sms_ = w.stack().parallel.gradients.registered_buffer_sms;
    reshards_ = w.gathered_for(strategy_) == Gathered::kPass;
    tied_ = w.tied();
    buffers_ = plan.buffers;
    window_ = plan.gather_window();
    comm_ = w.stream("communication", StreamRole::kCommunication, -1, -1);
    if (hybrid_) replicate_ = w.stream("all-reduce", StreamRole::kCommunication, -1, -1);
    shard_ready_ = w.event("shard_ready");
    gathered_ = w.event("gathered");
    forward_done_ = w.event("forward_done");
    backward_done_ = w.event("backward_done");
    gradient_taken_ = w.event("gradient_taken");
    finished_ = w.event("finished");

    ShardingFacts facts = facts_of(strategy_, w);
    facts.keeps_parameters = true;
    facts.keeps_sums = true;
    if (w.stack().optimizer.bucketed) facts.sum_dtype = plan.reduce_dtype;
    facts.weights.count = reshards_ ? buffers_ : UnitBuffers::kEveryUnit;
    facts.gradients.count = 2;
    facts.reduces_through_shard =
        plan.grad_accum > 1 || plan.reduce_dtype != plan.master_dtype || w.replicate_ranks() > 1;
    w.state(facts);
  }

  void begin_step(StepWriter& w) override { cast_master(w, w.total_owned(), {shard_ready_, 0}); }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements() == 0 || (!reshards_ && !w.first_micro_step())) return;
    // The first units find their buffers in use by their own backward of the micro-batch before.
    EventRef released;
    if (reshards_ && w.kind(-window_) != UnitKind::kOutside) {
      released = {forward_done_, static_cast<std::int16_t>(-window_)};
    } else if (!w.first_micro_step()) {
      released = {backward_done_, 0};
    }
    gather(w, 0, Phase::kForward, released);
    w.wait_on_compute({gathered_, 0});
  }

  void after_forward(StepWriter& w) override { w.record_on_compute(forward_done_); }

  void before_backward(StepWriter& w) override {
    w.unit_hook();
    if (w.elements(2) > 0) w.wait_on_compute({gradient_taken_, 2});
    if (!reshards_) {
      // Gathers order the gradient buffers of one micro-batch after those of the one before; here
      // there are none.
      if (!w.first_micro_step() && w.at_last_unit()) {
        w.wait_on_compute({gradient_taken_, w.to_first_unit()});
      }
      return;
    }
    // The last `buffers` units of forward still hold theirs.
    if (window_ == 1 && regathered(w, 0)) gather(w, 0, Phase::kBackward, {backward_done_, 1});
    if (regathered(w, 0)) w.wait_on_compute({gathered_, 0});
    if (window_ > 1 && regathered(w, -1)) {
      gather(w, -1, Phase::kBackward, {backward_done_, static_cast<std::int16_t>(window_ - 1)});
    }
  }

  void after_backward(StepWriter& w) override {
    w.release_weight_gradients();
    w.record_on_compute(backward_done_);
    const std::int64_t elements = w.trained();
    if (elements == 0) return;
    const Plan& plan = w.plan();
    const std::int64_t owned = w.trained_owned();
    const std::int64_t reduced_width = bytes_of(plan.reduce_dtype);
    const std::int64_t master_width = bytes_of(plan.master_dtype);
    if (w.skips_reductions() && !w.last_micro_step()) {
      // Added to whole gradients, which the last micro-batch reduces.
      w.memory_op(OpKind::kAccumulate, 0, Phase::kBackward, MemoryClass::kAdd,
                  (bytes_of(plan.param_dtype) + 2 * reduced_width) * elements, 0);
      return;
    }
    const bool casts = casts_gradients(w);
    if (casts) {
      Op& cast = w.memory_op(OpKind::kCastGradient, comm_, Phase::kReduce, MemoryClass::kCast,
                             cast_bytes(plan.param_dtype, plan.reduce_dtype) * elements,
                             reduced_width * elements, {{backward_done_, 0}});
      cast.record = {gradient_taken_, 0};
    }
    Op& scatter = w.collective(OpKind::kReduceScatter, comm_, Phase::kReduce,
                               reduced_width * elements, plan.reduce_dtype);
    scatter.collective.sms = registered_sms_;
    scatter.waits[0] = {backward_done_, 0};
    // The shard that the other stream completed in the micro-batch before is added to.
    if (hybrid_ && !w.first_micro_step()) scatter.waits[1] = {finished_, 0};
    scatter.record = casts ? EventRef{finished_, 0} : EventRef{gradient_taken_, 0};
    std::uint8_t last = comm_;
    if (hybrid_ && w.replicate_ranks() > 1) {
      Op& all_reduce =
          w.collective(OpKind::kAllReduce, replicate_, Phase::kReduce, reduced_width * owned,
                       plan.reduce_dtype, CommGroup::kReplicate);
      all_reduce.waits[0] = casts ? EventRef{finished_, 0} : EventRef{gradient_taken_, 0};
      last = replicate_;
    }
    // Divide once, cast if needed, and add to what earlier micro-batches left.
    const std::int64_t bytes =
        reduced_width + master_width + (w.first_micro_step() ? 0 : master_width);
    Op& accumulate = w.memory_op(OpKind::kAccumulate, last, Phase::kReduce, MemoryClass::kAdd,
                                 bytes * owned, master_width * owned);
    accumulate.record = {finished_, 0};
  }

  void end_micro_step(StepWriter& w) override {
    if (w.last_micro_step()) w.wait_on_compute({finished_, 0});
  }

 private:
  /// Whether backward gathers the unit at `offset` again.
  bool regathered(StepWriter& w, int offset) {
    if (w.elements(offset) == 0) return false;
    if (tied_ && w.kind(offset) == UnitKind::kEmbedding) return false;
    return w.elements(offset + buffers_) > 0;
  }

  void gather(StepWriter& w, int offset, Phase phase, EventRef released) {
    const DType dtype = w.plan().param_dtype;
    const auto at = static_cast<std::int8_t>(offset);
    Op& op =
        w.collective(OpKind::kAllGather, comm_, phase, w.gathered_bytes(w.elements(offset)), dtype);
    op.collective.sms = registered_sms_;
    op.target = at;
    op.waits[0] = released;
    op.waits[1] = {shard_ready_, at};
    op.record = {gathered_, at};
  }

  const StrategyInfo& strategy_;
  bool reshards_ = true, hybrid_;
  bool tied_ = false;
  int buffers_ = 2;
  int registered_sms_ = 0;  // that its collectives hold inside one NVLink domain; 0: as usual
  int window_ = 2;
  std::uint8_t comm_ = 0, replicate_ = 0;
  std::uint8_t shard_ready_ = 0, gathered_ = 0, forward_done_ = 0, backward_done_ = 0,
               gradient_taken_ = 0, finished_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_flat_sharded(const StrategyInfo& strategy, const Stack&) {
  return std::make_unique<FlatSharded>(strategy);
}

}  // namespace shardwright::sim
