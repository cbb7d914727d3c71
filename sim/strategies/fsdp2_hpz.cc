// SPDX-License-Identifier: Apache-2.0
// FSDP2 with a second shard in each node: fully_shard(reshard_after_forward=<GPUs of a node>), what
// ZeRO++ calls hierarchical partitioning (hpZ; Wang et al. 2023, arXiv 2306.10209, section 3.2;
// DeepSpeed's zero_hpz_partition_size).
//
// Forward gathers a unit over all W ranks, as FSDP2 does. Before it frees the gathered parameters
// each rank copies its part among the n ranks of its node aside, and backward gathers from those
// copies, inside the node. With P parameters in w bytes each, a rank receives in a micro-batch
//   forward   w P (W-1)/W      over all ranks,
//   backward  w P (n-1)/n      inside the node (fsdp2: w P (W-1)/W over all ranks),
// and holds w P / n more bytes between the two passes. Reductions are as in FSDP2.
//
// The copy is FSDPParam.to_sharded_post_forward's clone on the compute stream; it is freed once
// backward has gathered from it (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). Its gather's
// copy-in reads the compute type, so it casts nothing. The root keeps its parameters, as in FSDP2.
//
// No published run of it is in the ledger, so its times are FSDP2's and the collectives' alone, and
// the tuner takes it only when asked to. The executor has no communicator of a node's ranks yet:
// native stacks refuse the strategy.
#include "sim/strategies/fsdp2.h"
#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

namespace {

class Fsdp2Hpz final : public Fsdp2 {
 public:
  using Fsdp2::Fsdp2;

  void declare(StepWriter& w) override {
    Fsdp2::declare(w);
    kept_ = w.event("second_shard_kept");
  }

  void after_forward(StepWriter& w) override {
    if (w.elements() > 0 && !is_root(w, 0) && reshards_) {
      const std::int64_t bytes = second_shard_bytes(w, 0);
      w.memory_op(OpKind::kCopyOut, 0, Phase::kForward, MemoryClass::kCopy, 2 * bytes, bytes)
          .record = {kept_, 0};
      w.acquire(Tensor::kSecondaryShard, 0, bytes, 0, MemoryCategory::kParameters);
    }
    Fsdp2::after_forward(w);
  }

 protected:
  void regather(StepWriter& w, int offset, EventRef after) override {
    gather(w, offset, Phase::kBackward, 2 * second_shard_bytes(w, offset),
           {kept_, static_cast<std::int8_t>(offset)}, after, CommGroup::kSecondShard);
    w.release(Tensor::kSecondaryShard, offset);
  }

 private:
  static std::int64_t second_shard_bytes(StepWriter& w, int offset) {
    const std::int64_t ranks = w.schedule().group(CommGroup::kSecondShard).size;
    return bytes_of(w.plan().param_dtype) * (w.elements(offset) / ranks);
  }

  std::uint8_t kept_ = 0;
};

}  // namespace

std::unique_ptr<ShardingStrategy> make_fsdp2_hpz(const StrategyInfo& strategy, const Stack&) {
  return std::make_unique<Fsdp2Hpz>(strategy);
}

}  // namespace shardwright::sim
