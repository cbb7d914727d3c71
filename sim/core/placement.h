// SPDX-License-Identifier: Apache-2.0
// Where the memory that outlives a step lies: from the facts that a strategy states to the bytes of
// every persistent tensor, and to the place of every unit in them. Computed here only: memory
// prediction adds the bytes up, the executor allocates them and puts addresses to the places.
//
// What collectives read and write lies in front, because libraries want memory of a kind of its own
// for it. Units lie one after the other (embedding, layers, head, norms) wherever each has a place
// of its own. Gathered parameters of unit u take buffer u % n of n rotating ones, fresh gradients
// likewise; units that must outlive the rotation (norms apart, a tied embedding) have buffers of
// their own. Rank r of a shard group of n owns the r-th of n equal parts of each padded unit.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright {

/// Fills Schedule::persistent from its sharding facts and unit sizes, in the order of Persistent.
void list_persistent(Schedule& schedule);

/// Another size of the workspace than list_persistent() listed.
void set_workspace(Schedule& schedule, Bytes bytes);

/// Bytes of one allocation that holds all persistent tensors, each aligned.
Bytes persistent_bytes(const Schedule& schedule);

/// The same and the arena of activations: all that a rank with static memory allocates.
Bytes static_memory_bytes(const Schedule& schedule);

/// Some elements in that allocation.
struct PlacedArray {
  static constexpr Bytes kNowhere = -1;
  Bytes offset = kNowhere;
  DType dtype = DType::kFp32;
  std::int64_t size = 0;  // elements

  explicit operator bool() const { return offset != kNowhere; }
  PlacedArray part(std::int64_t first, std::int64_t count) const {
    return {offset + first * bytes_of(dtype), dtype, count};
  }
  bool operator==(const PlacedArray&) const = default;
};

/// Arrays of the whole padded unit, or of the own share of it ("owned").
struct UnitPlacement {
  PlacedArray parameters;      // what operations read
  PlacedArray gradient;        // what backward writes
  PlacedArray first_gradient;  // the same in the first micro-batch
  PlacedArray reduced;         // whole: what ranks reduce; may be `gradient`
  PlacedArray owned_source;    // owned: what is gathered; may be a part of `parameters`
  PlacedArray owned_master;    // owned: what the optimizer updates; may be `owned_source`
  PlacedArray first_moment;    // owned
  PlacedArray second_moment;   // owned
  PlacedArray gradient_sum;    // owned: the sum over ranks and micro-batches
  PlacedArray scratch;         // owned, in the type of `reduced`; nowhere without kReducedShard
};

/// The places of a schedule that keeps parameters, sums and fresh gradients for the whole step, as
/// those of static memory do.
class Placement {
 public:
  /// `shard_rank` of the shard group.
  Placement(const Schedule& schedule, std::int64_t shard_rank);

  Bytes size_bytes() const { return size_bytes_; }
  /// The first of these: what ranks gather and reduce, at equal offsets on all ranks.
  Bytes collective_bytes() const { return collective_bytes_; }
  /// Of a persistent tensor; kNowhere where the schedule has none.
  Bytes offset(Persistent kind) const { return offsets_[static_cast<std::size_t>(kind)]; }
  const UnitPlacement& unit(std::int32_t index) const {
    return units_[static_cast<std::size_t>(index)];
  }

 private:
  void place_tensors(const Schedule& schedule);
  void place_parameters(const Schedule& schedule, std::int64_t shard_rank);
  void place_states(const Schedule& schedule);
  void place_gradients(const Schedule& schedule, std::int64_t shard_rank);
  PlacedArray at(Persistent kind, DType dtype, std::int64_t first, std::int64_t size) const;

  std::array<Bytes, kPersistentKinds> offsets_;
  Bytes size_bytes_ = 0, collective_bytes_ = 0;
  std::int64_t ranks_ = 1;
  std::int64_t elements_ = 0;        // of all units
  std::vector<std::int64_t> first_;  // by unit: elements of the units before it
  std::vector<UnitPlacement> units_;
};

}  // namespace shardwright
