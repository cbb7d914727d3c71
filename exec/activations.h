// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a step lie at this moment of the walk over the schedule.
//
// An address belongs to a tensor, a unit and, in a pipeline, a micro-batch, from the operation that
// acquires it on. Addresses follow from the plan alone and are the same in every step.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "sim/core/arena.h"
#include "sim/core/memory_actions.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::exec {

class Activations {
 public:
  Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base);

  /// Of the operations that follow.
  void set_micro_batch(std::int32_t micro_batch) { micro_batch_ = micro_batch; }
  /// A memory action (index into Schedule::memory) that acquires, for a block's unit: of an
  /// operation of the step the `ordinal`-th. The slot of a message that it takes, or -1.
  std::int32_t acquire(std::size_t action, std::int32_t unit, OpId op, std::uint32_t ordinal);
  /// The address of an operand of `unit`; aborts when it was never acquired.
  void* at(const Operand& operand, std::int32_t unit) const;
  Bytes bytes(const Operand& operand, std::int32_t unit) const;
  /// The place of the tensor of any action, for poison.
  struct Place {
    void* data = nullptr;
    Bytes bytes = 0;
    std::int32_t slot = -1;
  };
  Place released(std::size_t action, std::int32_t unit) const;

 private:
  std::uint64_t key(Tensor tensor, std::int32_t unit) const {
    const std::int32_t micro = belongs_to_step(tensor) ? 0 : micro_batch_;
    return (static_cast<std::uint64_t>(micro) << 32 | static_cast<std::uint32_t>(unit)) *
               kTensorCount +
           index_of(tensor);
  }
  const Place& place(Tensor tensor, std::int32_t unit) const {
    static const Place kNone;
    const auto found = places_.find(key(tensor, unit));
    return found == places_.end() ? kNone : found->second;
  }

  const Schedule& schedule_;
  const ArenaPlan& arena_;
  std::byte* base_;
  std::int32_t micro_batch_ = 0;  // 0 also where there is one at a time
  std::unordered_map<std::uint64_t, Place> places_;
};

}  // namespace shardwright::exec
