// SPDX-License-Identifier: Apache-2.0
// All device memory of a rank: exactly what the plan predicts, allocated before the first step.
//
// One allocation holds the tensors that outlive a step, where sim/core/placement.h puts them, but
// for those of collectives, which are of the shard group's kind of memory; one holds the
// activations, laid out by plan_arena. Nothing is allocated later, so the measured peak
// is the predicted one to the byte.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/array.h"
#include "exec/communicator.h"
#include "exec/device.h"
#include "exec/layout.h"
#include "sim/core/arena.h"
#include "sim/core/memory_actions.h"
#include "sim/core/placement.h"
#include "sim/core/schedule.h"
#include "sim/core/tensor.h"

namespace shardwright::exec {

class StepMemory {
 public:
  StepMemory(const Schedule& schedule, Communicator& shard, Device& device);

  /// The bytes that the schedule needs on a device.
  static Bytes planned_bytes(const Schedule& schedule) { return static_memory_bytes(schedule); }

  /// A persistent tensor that the schedule has.
  std::byte* persistent(Persistent kind) const;
  /// Zeroes the persistent tensors.
  void clear(Device& device, StreamId stream) const;

  /// Where a place of the placement is.
  std::byte* at(Bytes offset) const;
  const Placement& placement() const { return placement_; }

  std::byte* activations() const { return static_cast<std::byte*>(activations_->data()); }
  const ArenaPlan& arena() const { return arena_; }

 private:
  ArenaPlan arena_;
  Placement placement_;
  std::unique_ptr<Allocation> collective_;
  std::unique_ptr<Allocation> persistent_;
  std::unique_ptr<Allocation> activations_;
};

// Which buffer holds what of a unit: the places that sim/core/placement.h computes from the
// schedule, as addresses in this rank's memory.

/// As UnitPlacement: arrays of the whole padded unit, or of the own share of it ("owned").
struct UnitMemory {
  Array parameters;
  Array gradient;
  Array first_gradient;
  Array reduced;
  Array owned_source;
  Array owned_master;
  Array first_moment;
  Array second_moment;
  Array gradient_sum;
  Array scratch;  // without data where a reduction adds onto the sum
};

class Sharding {
 public:
  Sharding(const Schedule& schedule, const ParameterLayout& layout, const StepMemory& memory,
           std::int64_t shard_rank);

  Sharded shards() const { return shards_; }
  /// Every rank sums whole gradients, in place.
  bool sums_whole_gradients() const { return sums_whole_gradients_; }
  const UnitMemory& unit(std::int32_t index) const {
    return units_[static_cast<std::size_t>(index)];
  }
  /// Backward writes the unit's gradients where whole ones are summed.
  bool sums_in_backward(std::int32_t index) const {
    return sums_whole_gradients_ && unit(index).gradient.data == unit(index).reduced.data;
  }
  std::int64_t shard_rank() const { return shard_rank_; }
  const ParameterLayout& layout() const { return layout_; }

 private:
  const ParameterLayout& layout_;
  Sharded shards_;
  bool sums_whole_gradients_;
  std::int64_t shard_rank_;
  std::vector<UnitMemory> units_;
};

// Where the tensors of a step lie at this moment of the walk over the schedule.
//
// An address belongs to a tensor, a unit and, in a pipeline, a micro-batch, from the operation that
// acquires it on. Addresses follow from the plan alone and are the same in every step.

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

// When gathered parameters are dead: after the last operation that reads them before their buffer
// is gathered into again or the step ends.
//
// The plan is made once from the schedule. Filling dead buffers with signalling NaNs turns a wait
// that a schedule forgot, or a buffer that rotates too early, into a NaN in the loss.

class Poison {
 public:
  /// An inactive plan never says that anything is dead.
  Poison(const Schedule& schedule, const Sharding& sharding, bool active);

  bool active() const { return active_; }
  void begin_step() { next_ = 0; }
  /// Calls f(unit) for every unit whose parameters die with the operation; operations of a step are
  /// asked for in ascending order.
  template <class F>
  void for_each_dead(OpId id, F&& f) {
    while (next_ < dead_.size() && dead_[next_].first < id) ++next_;
    for (; next_ < dead_.size() && dead_[next_].first == id; ++next_) f(dead_[next_].second);
  }

 private:
  bool active_;
  std::vector<std::pair<OpId, std::int32_t>> dead_;  // by operation
  std::size_t next_ = 0;
};

}  // namespace shardwright::exec
