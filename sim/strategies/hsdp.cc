// SPDX-License-Identifier: Apache-2.0
// Hybrid sharding: everything is sharded within groups of ranks, shards are all-reduced across
// them. Stacks do it as FSDP1 (HYBRID_SHARD) or as FSDP2 (a two-dimensional mesh); both files know
// how to reduce across groups.
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

std::unique_ptr<ShardingStrategy> make_hsdp(const StrategyInfo& strategy, const Stack& stack) {
  return stack.hsdp_on_fsdp1 ? make_fsdp1(strategy, stack) : make_fsdp2(strategy, stack);
}

}  // namespace shardwright::sim
