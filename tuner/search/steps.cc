// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/steps.h"

#include <utility>

#include "tuner/search/frameworks.h"

namespace shardwright::tuner {

std::vector<KnobStep> steps_of(Search& search, const Model& model, const Request& request,
                               const SearchOptions& options, const Found& choice) {
  const FrameworkPlans& framework = search.frameworks()[choice.framework];
  if (shares_data_alone(choice.plan(), model, framework))
    return knob_steps(search, model, request, choice);
  return size_steps(framework, model, request, options, choice);
}

namespace {

constexpr int kMostMoves = 16;

/// The best of the steps that nothing holds fixed, beyond the values that the search tries, and
/// worth moving for; null where there is none.
const KnobStep* best_outside(const std::vector<KnobStep>& steps) {
  const KnobStep* best = nullptr;
  for (const KnobStep& step : steps) {
    const bool gains = step.judgement.fits && step.cost < -kWorthMoving;
    if (gains && step.freedom == Freedom::kOutside && (best == nullptr || step.cost < best->cost))
      best = &step;
  }
  return best;
}

}  // namespace

std::vector<KnobStep> climb(Found& choice,
                            const std::function<std::vector<KnobStep>(const Found&)>& steps_of) {
  for (int moves = 0;; ++moves) {
    std::vector<KnobStep> steps = steps_of(choice);
    const KnobStep* best = best_outside(steps);
    if (best == nullptr || moves == kMostMoves) return steps;
    choice = {best->judgement.prediction, best->judgement.score, choice.framework};
  }
}

void put_first(std::vector<Found>& top, Found choice) {
  if (different(choice.plan(), top.front().plan())) {
    top.insert(top.begin(), std::move(choice));
  } else {
    top.front() = std::move(choice);
  }
}

}  // namespace shardwright::tuner
