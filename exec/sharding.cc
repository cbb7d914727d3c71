// SPDX-License-Identifier: Apache-2.0
#include "exec/sharding.h"

#include <algorithm>

namespace shardwright::exec {

Sharding::Sharding(const Schedule& schedule, const ParameterLayout& layout,
                   const StepMemory& memory, std::int64_t shard_rank)
    : layout_(layout),
      shards_(schedule.sharding.shards),
      sums_whole_gradients_(schedule.sharding.sums_whole_gradients()),
      shard_rank_(shard_rank) {
  const auto array = [&memory](const PlacedArray& placed) {
    return placed ? Array{memory.at(placed.offset), placed.dtype, placed.size} : Array{};
  };
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    const UnitPlacement& at = memory.placement().unit(u);
    units_.push_back({.parameters = array(at.parameters),
                      .gradient = array(at.gradient),
                      .first_gradient = array(at.first_gradient),
                      .reduced = array(at.reduced),
                      .owned_source = array(at.owned_source),
                      .owned_master = array(at.owned_master),
                      .first_moment = array(at.first_moment),
                      .second_moment = array(at.second_moment),
                      .gradient_sum = array(at.gradient_sum),
                      .scratch = array(at.scratch)});
  }
}

std::int64_t Sharding::owned_parameters(std::int32_t unit) const {
  const std::int64_t share = layout_.share(unit);
  return std::clamp<std::int64_t>(layout_.unit(unit).elements - shard_rank_ * share, 0, share);
}

}  // namespace shardwright::exec
