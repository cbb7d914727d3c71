// SPDX-License-Identifier: Apache-2.0
// What operations bring to life and let go of, for those who walk a step with for_each_op().
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/schedule.h"

namespace shardwright {

/// Of a pipeline's stage, a tensor that the passes of all micro-batches share: what sharding keeps.
constexpr bool belongs_to_step(Tensor tensor) {
  return is_weight_gradient(tensor) ||
         (tensor >= Tensor::kGathered && tensor <= Tensor::kOptimizerTemporary &&
          tensor != Tensor::kCastedShard);
}

/// Whether an operation that runs for the action's block reads or writes its tensor.
inline bool touches(const Op& op, const MemoryAction& action) {
  const auto is_it = [&](const Operand& operand) {
    return operand.tensor == action.tensor && operand.offset == action.offset;
  };
  return std::any_of(std::begin(op.in), std::end(op.in), is_it) ||
         std::any_of(std::begin(op.out), std::end(op.out), is_it);
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

/// Numbers for the tensors that a step brings to life, one for each unit and, of a pipeline's
/// stage, each micro-batch.
class TensorNumbers {
 public:
  explicit TensorNumbers(const Schedule& schedule)
      : schedule_(schedule), units_(static_cast<std::size_t>(schedule.units()), kNone) {
    tensors_.fill(kNone);
    std::size_t tensors = 0, units = 0, micro_batches = 1;
    const auto number = [](std::size_t& of, std::size_t& count) {
      if (of == kNone) of = count++;
    };
    for (const Block& block : schedule.blocks) {
      for (const MemoryAction& action : schedule.actions_of(block)) {
        if (!action.acquire || action.bytes == 0) continue;
        number(tensors_[index_of(action.tensor)], tensors);
        for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
          const std::int32_t unit = block.first_unit + rep * block.unit_step + action.offset;
          number(units_[static_cast<std::size_t>(unit)], units);
        }
      }
    }
    for (const Section& section : schedule.sections) {
      if (!section.pass) continue;
      const auto count = static_cast<std::size_t>(section.pass->micro_batch) + 1;
      micro_batches = std::max(micro_batches, count);
    }
    of_unit_ = tensors;
    of_micro_batch_ = tensors * units;
    size_ = of_micro_batch_ * micro_batches;
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t size() const { return size_; }
  /// kNone of a tensor that never lives.
  std::size_t of(const OpInstance& at, Tensor tensor, std::int32_t offset) const {
    const std::size_t number = tensors_[index_of(tensor)];
    const std::int32_t unit = at.unit + offset;
    if (number == kNone || unit < 0 || unit >= schedule_.units()) return kNone;
    const std::size_t of_unit = units_[static_cast<std::size_t>(unit)];
    if (of_unit == kNone) return kNone;
    const std::optional<Action>& pass = schedule_.sections[at.section].pass;
    const std::int32_t micro = pass && !belongs_to_step(tensor) ? pass->micro_batch : 0;
    return static_cast<std::size_t>(micro) * of_micro_batch_ + of_unit * of_unit_ + number;
  }

 private:
  const Schedule& schedule_;
  std::array<std::size_t, kTensorCount> tensors_{};
  std::vector<std::size_t> units_;
  std::size_t of_unit_ = 0, of_micro_batch_ = 0, size_ = 0;
};

}  // namespace shardwright
