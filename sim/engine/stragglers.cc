// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/stragglers.h"

#include <algorithm>

#include "sim/core/base/error.h"
#include "sim/engine/rank_draws.h"

namespace shardwright::sim {

StragglerResult simulate_stragglers(const Schedule& schedule, const std::vector<OpCost>& costs,
                                    const StragglerOptions& options) {
  if (options.ranks < 1) throw Error("straggler ranks must be at least 1");
  if (options.kernel_spread < 0 || options.kernel_spread > 1)
    throw Error("the spread of kernel times must be from 0 to 1");
  std::vector<OpId> collectives;
  OpId operations = 0;
  for_each_op(schedule, [&](const OpInstance& instance, const Op& op) {
    if (op.work.kind == WorkKind::kCollective && costs[instance.op].alone_ns > 0)
      collectives.push_back(instance.id);
    operations = instance.id + 1;
  });
  const auto count = static_cast<std::size_t>(operations);
  const auto ranks = static_cast<std::size_t>(options.ranks);
  std::vector<std::vector<double>> factors(ranks, std::vector<double>(count));
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankDraws draws(options.kernel_spread, options.seed, r);
    for (std::size_t i = 0; i < count; ++i) factors[r][i] = draws.factor(i);
  }
  std::vector<Nanoseconds> release(count, 0);
  std::vector<std::vector<Nanoseconds>> arrivals(ranks, std::vector<Nanoseconds>(count, 0));
  std::vector<StepTime> times(ranks);
  Engine engine;
  StragglerResult result;
  while (!result.settled && result.rounds < options.max_rounds) {
    ++result.rounds;
    for (std::size_t r = 0; r < ranks; ++r) {
      const RankVariation rank{&factors[r], &release, &arrivals[r]};
      EngineOptions engine_options;
      engine_options.variation = &rank;
      times[r] = engine.run(schedule, costs, engine_options);
    }
    result.settled = true;
    for (OpId id : collectives) {
      const auto at = static_cast<std::size_t>(id);
      Nanoseconds last = 0;
      for (const auto& arrival : arrivals) last = std::max(last, arrival[at]);
      result.settled = result.settled && last == release[at];
      release[at] = last;
    }
  }
  result.slowest =
      *std::max_element(times.begin(), times.end(),
                        [](const StepTime& a, const StepTime& b) { return a.step_ns < b.step_ns; });
  for (const auto& arrival : arrivals) {
    for (OpId id : collectives)
      result.waiting_ns +=
          release[static_cast<std::size_t>(id)] - arrival[static_cast<std::size_t>(id)];
  }
  result.waiting_ns /= options.ranks;
  return result;
}

}  // namespace shardwright::sim
