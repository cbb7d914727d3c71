// SPDX-License-Identifier: Apache-2.0
// What operations bring to life and let go of, for those who walk a step with for_each_op().
#pragma once

#include <cstdint>
#include <span>

#include "sim/core/schedule.h"

namespace shardwright {

/// Of a pipeline's stage, a tensor that the passes of all micro-batches share: what sharding keeps.
constexpr bool belongs_to_step(Tensor tensor) {
  return is_weight_gradient(tensor) ||
         (tensor >= Tensor::kGathered && tensor <= Tensor::kOptimizerTemporary &&
          tensor != Tensor::kCastedShard);
}

class MemoryActions {
 public:
  explicit MemoryActions(const Schedule& schedule) : schedule_(schedule) {}

  /// Those of the operation that for_each_op() has come to. To be asked for each in its turn.
  std::span<const MemoryAction> of(const OpInstance& at) {
    const Block& block = schedule_.blocks[at.block];
    const std::uint32_t local = at.op - block.first_op;
    if (local == 0) next_ = block.first_action;
    const std::uint32_t begin = next_;
    const std::uint32_t end = block.first_action + block.action_count;
    while (next_ < end && schedule_.memory[next_].op == local) ++next_;
    return std::span(schedule_.memory).subspan(begin, next_ - begin);
  }

 private:
  const Schedule& schedule_;
  std::uint32_t next_ = 0;
};

}  // namespace shardwright
