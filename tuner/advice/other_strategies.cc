// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/other_strategies.h"

#include <algorithm>
#include <utility>

namespace shardwright::tuner {

std::vector<OtherStrategy> other_strategies(Search& search, const Space& space,
                                            const Found& choice) {
  const Plan& chosen = choice.plan();
  std::vector<OtherStrategy> others;
  for (const Strategy strategy : space.strategies) {
    if (strategy == chosen.strategy) continue;
    OtherStrategy other;
    other.strategy = strategy;
    const auto wanted = [&, strategy](const Plan& plan) {
      return plan.strategy == strategy && plan.stack == chosen.stack &&
             plan.parallel == chosen.parallel &&
             plan.numerics.precision == chosen.numerics.precision;
    };
    std::vector<Found> best = search.best(1, wanted);
    if (!best.empty()) {
      other.cost = best.front().score / choice.score - 1;
      other.best = std::move(best.front());
    } else if (const std::optional<Overshoot> nearest = search.nearest(wanted)) {
      other.closest = search.judge({nearest->plan}, nearest->framework).front();
    } else {
      continue;  // stopped before any of its plans was looked at, or none makes sense
    }
    others.push_back(std::move(other));
  }
  std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
    if (a.best.has_value() != b.best.has_value()) return a.best.has_value();
    return a.best ? a.cost < b.cost : a.closest->excess_bytes < b.closest->excess_bytes;
  });
  return others;
}

}  // namespace shardwright::tuner
