// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a step lie at this moment of the walk over the schedule.
//
// An address belongs to a tensor and a unit, from the operation that acquires it on. Addresses
// follow from the plan alone and are the same in every step.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/arena.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::exec {

class Activations {
 public:
  Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base);

  /// A memory action (index into Schedule::memory) that acquires, for a block's unit.
  void acquire(std::size_t action, std::int32_t unit);
  /// The address of an operand of `unit`; aborts when it was never acquired.
  void* at(const Operand& operand, std::int32_t unit) const;
  Bytes bytes(const Operand& operand, std::int32_t unit) const;
  /// The place of the tensor of any action, for poison.
  struct Place {
    void* data = nullptr;
    Bytes bytes = 0;
  };
  Place released(std::size_t action, std::int32_t unit) const;

 private:
  const Place& place(Tensor tensor, std::int32_t unit) const {
    return places_[index_of(tensor) * units_ + static_cast<std::size_t>(unit)];
  }

  const Schedule& schedule_;
  const ArenaPlan& arena_;
  std::byte* base_;
  std::size_t units_;
  std::vector<Place> places_;  // by tensor and unit
};

}  // namespace shardwright::exec
