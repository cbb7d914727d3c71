// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a step lie at this moment of the walk over the schedule.
//
// Tensors are named as in the schedule; an address belongs to a name and a unit, from the operation
// that acquires it on. Addresses follow from the plan alone and are the same in every step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/arena.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

/// The tensors of native schedules that operations read and write.
enum class Tensor : std::uint8_t {
  kX,
  kNorm1Statistics,
  kNorm1Out,
  kQkv,
  kQueryRaw,
  kKeyRaw,
  kQkNormStatistics,
  kAttentionOut,
  kAttentionStatistics,
  kXMid,
  kNorm2Statistics,
  kNorm2Out,
  kGateUp,
  kUp,
  kActivationOut,
  kLogits,
  kDX,
  kDActivation,
  kDGateUp,
  kDNorm2,
  kDXMid,
  kDAttention,
  kDQkv,
  kDNorm1,
  kTemporary,
  kCount
};

class Activations {
 public:
  Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base);

  /// A memory action (index into Schedule::memory) that acquires, for a block's unit.
  void acquire(std::size_t action, std::int32_t unit);
  /// The address of an acquired tensor; aborts when it never was.
  void* at(Tensor tensor, std::int32_t unit) const;
  Bytes bytes(Tensor tensor, std::int32_t unit) const;
  /// The place of the tensor of any action, for poison.
  struct Place {
    void* data = nullptr;
    Bytes bytes = 0;
  };
  Place released(std::size_t action, std::int32_t unit) const;

 private:
  const Place& place(std::uint16_t slot, std::int32_t unit) const {
    return places_[slot * units_ + static_cast<std::size_t>(unit)];
  }

  const Schedule& schedule_;
  const ArenaPlan& arena_;
  std::byte* base_;
  std::size_t units_;
  std::array<std::uint16_t, static_cast<std::size_t>(Tensor::kCount)> slots_{};
  std::vector<Place> places_;  // by slot and unit
};

}  // namespace shardwright::exec
