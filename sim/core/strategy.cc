// SPDX-License-Identifier: Apache-2.0
#include "sim/core/strategy.h"

#include <algorithm>
#include <array>

namespace shardwright {

namespace {

constexpr std::array<StrategyInfo, kStrategyCount> kInfos = {{
#define STRATEGY(enumerator, label, factory, ...) \
  {.id = Strategy::enumerator, .name = label, __VA_ARGS__},
#include "sim/core/strategies.def"
#undef STRATEGY
}};

}  // namespace

int StrategyInfo::zero_stage() const {
  if (shards == Sharded::kParameters) return reshards ? 3 : 2;
  return static_cast<int>(shards);
}

const StrategyInfo& info_of(Strategy strategy) {
  return kInfos[static_cast<std::size_t>(strategy)];
}

std::string_view name_of(Strategy strategy) {
  return info_of(strategy).name;
}

std::optional<Strategy> strategy_from(std::string_view name) {
  const auto* found = std::find_if(kInfos.begin(), kInfos.end(),
                                   [name](const StrategyInfo& info) { return info.name == name; });
  if (found == kInfos.end()) return std::nullopt;
  return found->id;
}

std::vector<Strategy> all_strategies() {
  std::vector<Strategy> strategies;
  for (const StrategyInfo& info : kInfos) strategies.push_back(info.id);
  return strategies;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const StrategyInfo& info : kInfos) names.emplace_back(info.name);
  return names;
}

std::string sharding_words(Strategy strategy, std::string_view group) {
  const StrategyInfo& info = info_of(strategy);
  const std::string over = " sharded over " + std::string(group);
  if (info.one_rank) return "nothing is sharded or reduced";
  if (info.replicates()) return "every rank holds everything; gradients are reduced over all ranks";
  if (info.hybrid)
    return "everything is sharded within " + std::string(group) + " and replicated across";
  if (info.shards == Sharded::kOptimizer) return "optimizer state is" + over;
  if (!info.reshards) {
    return "gradients and optimizer state are" + over +
           "; parameters stay gathered from forward to backward";
  }
  std::string words = "parameters, gradients and optimizer state are" + over;
  if (info.second_shard) words += "; backward gathers from a second shard within a node";
  return words;
}

}  // namespace shardwright
