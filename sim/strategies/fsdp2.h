// SPDX-License-Identifier: Apache-2.0
// PyTorch FSDP2 (fully_shard) as torchtitan uses it. Protected is what its relatives are written
// with (fsdp2_hpz.cc; others would gather earlier, or elsewhere).
#pragma once

#include <cstdint>

#include "sim/core/schedule.h"
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

class Fsdp2 : public ShardingStrategy {
 public:
  explicit Fsdp2(const StrategyInfo& strategy) : strategy_(strategy), hybrid_(strategy.hybrid) {}

  void declare(StepWriter& w) override;
  void begin_step(StepWriter& w) override;
  void before_forward(StepWriter& w) override;
  void after_forward(StepWriter& w) override;
  void before_backward(StepWriter& w) override;
  void after_backward(StepWriter& w) override;
  void end_micro_step(StepWriter& w) override;
  void after_optimizer(StepWriter& w) override;
  bool can_skip_reductions() const override { return true; }

 protected:
  /// The unit that keeps its parameters: it holds a tied head.
  static bool is_root(StepWriter& w, int offset);
  /// Gathers, for backward, the unit at `offset` once `after` has completed.
  virtual void regather(StepWriter& w, int offset, EventRef after);
  /// Copies a rank's part of a gather in, casting on the way, and gathers over `group`. `bytes` is
  /// the traffic of the copy.
  void gather(StepWriter& w, int offset, Phase phase, std::int64_t copied_bytes, EventRef ready,
              EventRef after, CommGroup group);
  /// The same of a rank's whole shard, over the shard group.
  void gather_shards(StepWriter& w, int offset, Phase phase, EventRef after);
  /// Copies what was gathered for the current unit into its parameters; records copied_out_.
  void copy_out(StepWriter& w);

  bool reshards_ = true;
  std::uint8_t copied_out_ = 0;

 private:
  /// Adds the unit's gradients to whole ones, which wait for the last micro-batch.
  void accumulate_whole(StepWriter& w);

  const StrategyInfo& strategy_;
  bool hybrid_;
  std::uint8_t copy_in_ = 0, comm_ = 0, replicate_ = 0;
  std::uint8_t shard_ready_ = 0, gathered_ = 0, reduce_ready_ = 0, reduced_ = 0, finished_ = 0,
               copied_in_ = 0;
};

}  // namespace shardwright::sim
