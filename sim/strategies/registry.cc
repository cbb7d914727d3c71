// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/parallelism.h"
#include "sim/strategies/lower.h"
#include "sim/strategies/strategy.h"

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
  if (info.software == Software::kMegatron) return stack.parallel.megatron;
  return info.native || stack.memory != MemoryManager::kStatic;
}

std::unique_ptr<ShardingStrategy> make_strategy(const Plan& plan, const Stack& stack) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  // Megatron's own around layers of other frameworks, where these are model-parallel, too.
  const bool megatron = stack.parallel.megatron || (strategy.software == Software::kMegatron &&
                                                    stack.memory != MemoryManager::kStatic &&
                                                    !beyond_data_parallel(plan).empty());
  if (!megatron && !has_schedule(plan.strategy, stack)) {
    throw InvalidPlan(
        fmt::format("strategy is {}, which the framework {} does not run, expected another "
                    "strategy or a stack of "
                    "PyTorch",
                    strategy.name, stack.id));
  }
  if (megatron) {
    return strategy.shards == Sharded::kParameters ? make_flat_sharded(strategy)
                                                   : make_distributed_optimizer(strategy, stack);
  }
  if (stack.memory == MemoryManager::kStatic && plan.use_parts() > 1)
    return make_whole_sums(strategy);
  return kFactories[static_cast<std::size_t>(plan.strategy)](strategy, stack);
}

}  // namespace shardwright::sim
