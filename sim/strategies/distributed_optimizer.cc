// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's DistributedDataParallel (core/distributed/distributed_data_parallel.py), with or
// without the distributed optimizer: gradients lie in one buffer, cut into buckets; GEMMs add to
// them in place where the framework's kernels do. The last micro-batch's backward fills them, and a
// bucket is reduce-scattered (all-reduced without the optimizer) as soon as it is full, or all of
// them at the end. Parameters are gathered bucket by bucket beside the next forward, or at once
// after the update. A unit is reduced in as many calls as it fills buckets. Of a pipeline only the
// chunk with the embedding is cut; the others are one bucket each.
#include <algorithm>
#include <cmath>

#include "sim/program/optimizer_state.h"
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

class DistributedOptimizer final : public ShardingStrategy {
 public:
  explicit DistributedOptimizer(const StrategyInfo& strategy)
      : strategy_(strategy), shards_(strategy.shards != Sharded::kNothing) {}

  void declare(StepWriter& w) override {
    w.set_layout({});
    const ParallelSoftware& software = w.stack().parallel;
    const Parallelism& parallel = w.plan().parallel;
    overlaps_reduce_ = parallel.overlap_grad_reduce.value_or(software.overlap_grad_reduce);
    overlaps_gather_ = parallel.overlap_param_gather.value_or(software.overlap_param_gather);
    comm_ = w.stream("communication", StreamRole::kCommunication, 0, -1);
    gathered_ = w.event("gathered");
    backward_done_ = w.event("backward_done");
    copied_ = w.event("copied");
    reduced_ = w.event("reduced");
    updated_ = w.event("updated");
    ShardingFacts facts = facts_of(strategy_, w);
    facts.keeps_parameters = facts.keeps_sums = true;
    // ZeRO-2 is that, too: gradients lie whole in their buffer.
    facts.shards = std::min(facts.shards, Sharded::kOptimizer);
    const DType reduced = w.plan().reduce_dtype;
    const double summed = gradient_bytes(w.plan(), w.stack());
    facts.sum_dtype =
        summed < static_cast<double>(bytes_of(reduced)) ? w.plan().param_dtype : reduced;
    facts.small_gradient_bytes = kept_gradient_bytes(w.plan(), w.stack()) - summed;
    const GradientSoftware& gradients = software.gradients;
    if (shards_ && reduced != DType::kFp32) {
      facts.gradient_bucket_bytes =
          static_cast<Bytes>(gradients.flattened_bytes * static_cast<double>(w.total_owned()) +
                             gradients.bucket_bytes);
    }
    facts.update_tensors = 1;
    w.state(facts);
  }

  void before_forward(StepWriter& w) override {
    w.unit_hook();
    if (!shards_ || !overlaps_gather_ || !w.first_micro_step()) return;
    const std::int64_t elements = w.cuts_buckets()    ? w.trained()
                                  : w.at_first_unit() ? w.total_trained()
                                                      : 0;
    if (elements == 0) return;
    gather(w, Phase::kForward, elements).record = {gathered_, 0};
    w.wait_on_compute({gathered_, 0});
  }

  void before_backward(StepWriter& w) override { w.unit_hook(); }

  void after_backward(StepWriter& w) override {
    const std::int64_t elements = w.trained();
    const Stack& stack = w.stack();
    // The embedding's own operation counts it.
    if (w.kind() != UnitKind::kEmbedding && elements > 0 &&
        !stack.parallel.accumulates_in_product && w.plan().grad_accum > 1) {
      w.memory_op(OpKind::kAccumulate, 0, Phase::kBackward, MemoryClass::kAdd,
                  static_cast<std::int64_t>(stack.gradient_accumulate_bytes *
                                            static_cast<double>(elements)),
                  0);
    }
    w.release_weight_gradients();
    w.record_on_compute(backward_done_);
    if (!overlaps_reduce_ || !w.cuts_buckets() || !w.last_micro_step() || elements == 0) return;
    reduce(w, elements);
  }

  void end_micro_step(StepWriter& w) override {
    if (!w.last_micro_step()) return;
    if (!overlaps_reduce_ || !w.cuts_buckets()) reduce(w, w.total_trained());
    w.wait_on_compute({reduced_, 0});
  }

  void after_optimizer(StepWriter& w) override {
    if (!shards_ || overlaps_gather_) return;
    w.record_on_compute(updated_);
    gather(w, Phase::kOptimizer, w.total_trained()).waits[0] = {updated_, 0};
  }

 private:
  std::uint16_t calls(const StepWriter& w, std::int64_t elements) const {
    if (!w.cuts_buckets()) return 1;
    const ParallelSoftware& software = w.stack().parallel;
    const double ranks = static_cast<double>(w.layout().group(CommGroup::kData).size);
    const double bucket =
        std::max(software.bucket_parameters, software.bucket_parameters_per_rank * ranks);
    return static_cast<std::uint16_t>(
        std::clamp(std::ceil(static_cast<double>(elements) / bucket), 1.0, 65535.0));
  }

  Op& gather(StepWriter& w, Phase phase, std::int64_t elements) {
    Op& op = w.collective(OpKind::kAllGather, comm_, phase, w.gathered_bytes(elements),
                          w.plan().param_dtype);
    if (overlaps_gather_) op.work.kernels = calls(w, elements);
    return op;
  }

  void reduce(StepWriter& w, std::int64_t elements) {
    const GradientSoftware& software = w.stack().parallel.gradients;
    const double count = static_cast<double>(elements);
    const bool whole = shards_ && software.whole_bytes > 0;
    const double width = whole ? software.whole_bytes : gradient_bytes(w.plan(), w.stack());
    EventRef ready{backward_done_, 0};
    if (whole && software.whole_copy_bytes > 0) {
      Op& copy = w.memory_op(OpKind::kCopyIn, 0, Phase::kReduce, MemoryClass::kStream,
                             static_cast<std::int64_t>(software.whole_copy_bytes * count), 0);
      copy.record = ready = {copied_, 0};
    }
    const bool scatters = shards_ && !whole;
    Op& op =
        w.collective(scatters ? OpKind::kReduceScatter : OpKind::kAllReduce, comm_, Phase::kReduce,
                     static_cast<std::int64_t>(width * count), w.plan().reduce_dtype,
                     shards_ ? CommGroup::kShard : CommGroup::kReplicate);
    if (overlaps_reduce_) op.work.kernels = calls(w, elements);
    op.waits[0] = ready;
    op.record = {reduced_, 0};
    if (!shards_ || w.replicate_ranks() <= 1) return;
    Op& across = w.collective(
        OpKind::kAllReduce, comm_, Phase::kReduce,
        static_cast<std::int64_t>(width * count / static_cast<double>(w.shard_ranks())),
        w.plan().reduce_dtype, CommGroup::kReplicate);
    across.record = {reduced_, 0};
  }

  const StrategyInfo& strategy_;
  bool shards_;
  bool overlaps_reduce_ = false, overlaps_gather_ = false;
  std::uint8_t comm_ = 0;
  std::uint8_t gathered_ = 0, backward_done_ = 0, copied_ = 0, reduced_ = 0, updated_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_distributed_optimizer(const StrategyInfo& strategy,
                                                             const Stack&) {
  return std::make_unique<DistributedOptimizer>(strategy);
}

}  // namespace shardwright::sim
