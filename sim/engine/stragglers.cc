// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/stragglers.h"

#include <algorithm>

#include "sim/core/base/error.h"

namespace shardwright::sim {

namespace {

struct Meeting {
  OpId id = 0;
  bool within_pass = false;

  bool joins(const StragglerOptions& options, std::size_t a, std::size_t b) const {
    if (options.pass_ranks <= 0) return true;
    const auto ranks = static_cast<std::size_t>(options.pass_ranks);
    return within_pass ? a / ranks == b / ranks : a % ranks == b % ranks;
  }
};

bool within_pass(CommGroup group) {
  return group == CommGroup::kTensor || group == CommGroup::kContext || group == CommGroup::kExpert;
}

}  // namespace

StragglerResult simulate_stragglers(const Schedule& schedule, const std::vector<OpCost>& costs,
                                    const StragglerOptions& options) {
  if (options.ranks < 1) throw Error("straggler ranks must be at least 1");
  if (options.kernel_spread < 0 || options.kernel_spread > 1)
    throw Error("the spread of kernel times must be from 0 to 1");
  std::vector<Meeting> meetings;
  OpId operations = 0;
  for_each_op(schedule, [&](const OpInstance& instance, const Op& op) {
    if (op.work.kind == WorkKind::kCollective && costs[instance.op].alone_ns > 0)
      meetings.push_back({instance.id, within_pass(op.work.group)});
    operations = instance.id + 1;
  });
  const auto count = static_cast<std::size_t>(operations);
  const auto ranks = static_cast<std::size_t>(options.ranks);
  std::vector<std::vector<double>> factors(ranks, std::vector<double>(count));
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankDraws draws(options.kernel_spread, options.seed, r, options.rank_spread);
    for (std::size_t i = 0; i < count; ++i) factors[r][i] = draws.factor(i);
  }
  std::vector<std::vector<Nanoseconds>> releases(ranks, std::vector<Nanoseconds>(count, 0));
  std::vector<std::vector<Nanoseconds>> arrivals = releases;
  std::vector<StepTime> times(ranks);
  Engine engine;
  StragglerResult result;
  while (!result.settled && result.rounds < options.max_rounds) {
    ++result.rounds;
    for (std::size_t r = 0; r < ranks; ++r) {
      const RankVariation rank{&factors[r], &releases[r], &arrivals[r]};
      EngineOptions engine_options = options.engine;
      engine_options.variation = &rank;
      times[r] = engine.run(schedule, costs, engine_options);
    }
    result.settled = true;
    for (const Meeting& meeting : meetings) {
      const auto at = static_cast<std::size_t>(meeting.id);
      for (std::size_t r = 0; r < ranks; ++r) {
        Nanoseconds last = 0;
        for (std::size_t other = 0; other < ranks; ++other) {
          if (meeting.joins(options, r, other)) last = std::max(last, arrivals[other][at]);
        }
        result.settled = result.settled && last == releases[r][at];
        releases[r][at] = last;
      }
    }
  }
  result.slowest =
      *std::max_element(times.begin(), times.end(),
                        [](const StepTime& a, const StepTime& b) { return a.step_ns < b.step_ns; });
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const Meeting& meeting : meetings) {
      const auto at = static_cast<std::size_t>(meeting.id);
      result.waiting_ns += releases[r][at] - arrivals[r][at];
    }
    for (std::size_t g = 0; g < result.exposed_ns.size(); ++g)
      result.exposed_ns[g] += times[r].exposed_ns[g];
  }
  result.waiting_ns /= options.ranks;
  for (Nanoseconds& exposed : result.exposed_ns) exposed /= options.ranks;
  return result;
}

}  // namespace shardwright::sim
