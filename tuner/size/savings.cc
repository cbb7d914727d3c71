// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/savings.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "sim/core/base/error.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

namespace {

Sweep tuned(const Model& model, const Offer& offer, const SizingJob& job, std::int64_t gpus,
            Strategy strategy) {
  SizingJob own = job;
  own.fixed.strategies = {strategy};
  own.gpus = gpus;
  return sweep(model, {offer}, own);
}

sim::Prediction best_plan(const Model& model, const Offer& offer, const SizingJob& job,
                          std::int64_t gpus, Strategy strategy) {
  Sweep result = tuned(model, offer, job, gpus, strategy);
  if (!result.options.empty()) return std::move(result.options.front().prediction);
  const LeftOut& why = result.left_out.front();
  throw Error(fmt::format("--compare: {} has no plan on {} GPUs of {}: {}", name_of(strategy), gpus,
                          offer.name, why.reason),
              why.lack == Lack::kMemory ? ExitCode::kInfeasible : ExitCode::kBadInput);
}

/// The fewest whole nodes, below the fleet, on which the faster strategy is no slower; each GPU has
/// as many sequences as in the fleet.
void find_whole_nodes(const Model& model, const Offer& offer, const SizingJob& job,
                      Savings& savings) {
  constexpr int kTries = 32;
  const std::int64_t node = std::min(offer.profile.cluster.gpus_per_node, savings.gpus);
  const Plan& plan = savings.faster.plan;
  savings.whole_node_gpus = savings.gpus;
  savings.whole_node_tokens_per_s = savings.faster.time.tokens_per_s;
  const double nodes = savings.equal.gpus_needed / static_cast<double>(node);
  std::int64_t gpus = std::max<std::int64_t>(1, static_cast<std::int64_t>(nodes)) * node;
  for (int i = 0; i < kTries && gpus < savings.gpus; ++i, gpus += node) {
    SizingJob own = job;
    if (!own.fixed.micro_batch || !own.fixed.grad_accum)
      own.fixed.global_batch = plan.micro_batch * plan.grad_accum * gpus;
    const Sweep result = tuned(model, offer, own, gpus, plan.strategy);
    if (result.options.empty()) continue;
    const double tokens_per_s = result.options.front().prediction.time.tokens_per_s;
    if (tokens_per_s < savings.slower.time.tokens_per_s) continue;
    savings.whole_node_gpus = gpus;
    savings.whole_node_tokens_per_s = tokens_per_s;
    return;
  }
}

}  // namespace

EqualThroughput equal_throughput(double gpus, double faster_tokens_per_gpu_s,
                                 double slower_tokens_per_gpu_s, double usd_per_gpu_hour) {
  EqualThroughput equal;
  equal.gpus_needed = gpus * slower_tokens_per_gpu_s / faster_tokens_per_gpu_s;
  equal.gpus_saved = gpus - equal.gpus_needed;
  if (usd_per_gpu_hour > 0)
    equal.usd_per_month = equal.gpus_saved * usd_per_gpu_hour * kHoursPerMonth;
  return equal;
}

Savings compare_strategies(const Model& model, const std::vector<Offer>& offers, std::size_t offer,
                           const SizingJob& job, std::int64_t gpus,
                           const std::array<Strategy, 2>& strategies) {
  const Offer& at = offers[offer];
  Savings savings;
  savings.offer = offer;
  savings.gpus = gpus;
  savings.faster = best_plan(model, at, job, gpus, strategies[0]);
  savings.slower = best_plan(model, at, job, gpus, strategies[1]);
  if (savings.faster.time.tokens_per_s < savings.slower.time.tokens_per_s)
    std::swap(savings.faster, savings.slower);
  savings.equal = equal_throughput(static_cast<double>(gpus), savings.faster.time.tokens_per_gpu_s,
                                   savings.slower.time.tokens_per_gpu_s, at.usd_per_gpu_hour);
  savings.executed_alike =
      executed_as(strategies[0], at.profile.stack) == executed_as(strategies[1], at.profile.stack);
  find_whole_nodes(model, at, job, savings);
  return savings;
}

}  // namespace shardwright::tuner
