// SPDX-License-Identifier: Apache-2.0
// Which buffer holds what of a unit: the places that sim/core/placement.h computes from the
// schedule, as addresses in this rank's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/array.h"
#include "exec/layout.h"
#include "exec/step_memory.h"
#include "sim/core/schedule.h"

namespace shardwright::exec {

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
  /// Elements of the own share that are parameters, not padding: they come first.
  std::int64_t owned_parameters(std::int32_t unit) const;
  std::int64_t shard_rank() const { return shard_rank_; }
  const ParameterLayout& layout() const { return layout_; }

 private:
  const ParameterLayout& layout_;
  Sharded shards_;
  bool sums_whole_gradients_;
  std::int64_t shard_rank_;
  std::vector<UnitMemory> units_;
};

}  // namespace shardwright::exec
