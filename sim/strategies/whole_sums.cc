// SPDX-License-Identifier: Apache-2.0
// Every strategy as the native executor runs it between the stages of a pipeline, where several
// micro-batches are in flight, and elsewhere where a plan asks for the same sums: parameters are
// gathered in a chunk's first pass and stay, gradients are summed whole, and the last pass reduces
// them. What is divided between ranks, and so what outlives the step, is the strategy's.
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

class WholeSums final : public ShardingStrategy {
 public:
  explicit WholeSums(const StrategyInfo& strategy)
      : strategy_(strategy), shards_(strategy.shards != Sharded::kNothing) {}

  void declare(StepWriter& w) override {
    w.set_layout({});
    comm_ = w.stream("communication", StreamRole::kCommunication, -1, -1);
    shard_ready_ = w.event("shard_ready");
    gathered_ = w.event("gathered");
    backward_done_ = w.event("backward_done");
    reduced_ = w.event("reduced");
    ShardingFacts facts = facts_of(strategy_, w);
    facts.keeps_parameters = true;
    facts.keeps_sums = true;
    facts.sum_dtype = w.plan().reduce_dtype;
    facts.sums_whole = true;
    if (strategy_.shards == Sharded::kParameters) facts.weights.count = UnitBuffers::kEveryUnit;
    sum_whole_gradients(facts, w, 1);
    w.state(facts);
  }

  void begin_step(StepWriter& w) override {
    cast_master(w, shards_ ? w.total_owned() : w.total_elements(), {shard_ready_, 0});
  }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (!shards_ || w.elements() == 0 || !w.first_micro_step()) return;
    const DType dtype = w.plan().param_dtype;
    Op& gather = w.collective(OpKind::kAllGather, comm_, Phase::kForward,
                              w.gathered_bytes(w.elements()), dtype);
    gather.waits[0] = {shard_ready_, w.to_first_unit()};
    gather.record = {gathered_, 0};
    w.wait_on_compute({gathered_, 0});
  }

  void after_backward(StepWriter& w) override {
    const std::int64_t elements = w.summed();
    const std::int64_t width = bytes_of(w.plan().reduce_dtype);
    if (elements > 0) add_to_whole_sums(w, OpKind::kCopyIn, elements);
    w.release_weight_gradients();
    if (!w.last_micro_step() || elements == 0) return;
    // Where weight gradients are put off, so is this.
    w.op(OpKind::kHostWork, 0, Phase::kBackward).work.kernels = 0;
    w.record_on_compute(backward_done_);
    if (shards_) reduce(w, OpKind::kReduceScatter, CommGroup::kShard, width * elements);
    if (w.replicate_ranks() > 1 || !shards_) {
      reduce(w, OpKind::kAllReduce, CommGroup::kReplicate,
             width * (shards_ ? elements / w.shard_ranks() : elements));
    }
  }

  void end_micro_step(StepWriter& w) override {
    if (w.last_micro_step()) w.wait_on_compute({reduced_, 0});
  }

 private:
  /// In the order of the units' backward, on one stream.
  void reduce(StepWriter& w, OpKind kind, CommGroup group, std::int64_t bytes) {
    Op& op = w.collective(kind, comm_, Phase::kReduce, bytes, w.plan().reduce_dtype, group);
    op.waits[0] = {backward_done_, 0};
    op.record = {reduced_, 0};
  }

  const StrategyInfo& strategy_;
  bool shards_;
  std::uint8_t comm_ = 0;
  std::uint8_t shard_ready_ = 0, gathered_ = 0, backward_done_ = 0, reduced_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_whole_sums(const StrategyInfo& strategy) {
  return std::make_unique<WholeSums>(strategy);
}

}  // namespace shardwright::sim
