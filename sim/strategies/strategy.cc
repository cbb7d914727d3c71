// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/strategy.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

namespace {

using Factory = std::unique_ptr<ShardingStrategy> (*)(const StrategyInfo&, const Stack&);

constexpr std::array<Factory, kStrategyCount> kFactories = {
#define STRATEGY(id, name, factory, ...) &factory,
#include "sim/core/strategies.def"
#undef STRATEGY
};

}  // namespace

bool has_schedule(Strategy strategy, const Stack& stack) {
  const StrategyInfo& info = info_of(strategy);
  const std::vector<std::string>& own = stack.strategies;
  if (!own.empty()) return std::find(own.begin(), own.end(), info.name) != own.end();
  if (info.bucketed) return stack.parallel.features().has(Feature::kBucketedStrategy);
  return info.native || stack.memory != MemoryManager::kStatic;
}

std::unique_ptr<ShardingStrategy> make_strategy(const Plan& plan, const Stack& stack) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (!has_schedule(plan.strategy, stack)) {
    const std::string expected = stack.strategies.empty()
                                     ? "another strategy or a stack of PyTorch"
                                     : fmt::format("{}", fmt::join(stack.strategies, ", "));
    throw InvalidPlan(
        fmt::format("strategy is {}, which the framework {} does not run, expected {}",
                    strategy.name, stack.id, expected));
  }
  // Whatever a strategy is called there.
  if (stack.optimizer.bucketed) {
    return strategy.shards == Sharded::kParameters ? make_flat_sharded(strategy, stack)
                                                   : make_distributed_optimizer(strategy, stack);
  }
  if (stack.memory == MemoryManager::kStatic && plan.use_parts() > 1)
    return make_whole_sums(strategy);
  return kFactories[static_cast<std::size_t>(plan.strategy)](strategy, stack);
}

// Hybrid sharding: everything is sharded within groups of ranks, shards are all-reduced across
// them. Stacks do it as FSDP1 (HYBRID_SHARD) or as FSDP2 (a two-dimensional mesh); both files know
// how to reduce across groups.

std::unique_ptr<ShardingStrategy> make_hsdp(const StrategyInfo& strategy, const Stack& stack) {
  return stack.hsdp_on_fsdp1 ? make_fsdp1(strategy, stack) : make_fsdp2(strategy, stack);
}

}  // namespace shardwright::sim
