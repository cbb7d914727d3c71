// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuning.h"

#include <chrono>

#include "tuner/scenarios.h"

namespace shardwright::tuner {

Tuning tune(const Model& model, const profiles::Profile& profile, const Request& request,
            const TuneOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::vector<Scenario> adverse = adverse_scenarios(profile);
  std::vector<Scenario> scenarios{as_predicted(profile)};
  if (options.robust) scenarios.insert(scenarios.end(), adverse.begin(), adverse.end());

  Tuning tuning;
  const Space space = space_of(request, model, profile);
  tuning.strategies = space.strategies;
  Search search(model, scenarios, space, options.search);
  tuning.top = search.best(options.top);
  if (!tuning.top.empty() && !search.stopped()) tuning.pareto = search.pareto();
  tuning.counts = search.counts();
  tuning.search_s = elapsed_s();
  if (!search.stopped()) {
    if (tuning.top.empty()) {
      tuning.advice = advise(search, model, scenarios, request, options.search);
    } else {
      const Found& choice = tuning.top.front();
      tuning.steps = knob_steps(search, request, space, model, profile, choice);
      tuning.others = other_strategies(search, space, choice);
      std::vector<Plan> plans;
      for (const Found& found : tuning.top) plans.push_back(found.plan());
      tuning.robustness = robustness_of(model, adverse, space, options.search, plans);
    }
  }
  tuning.stopped = search.stopped();
  if (tuning.stopped) {  // what was cut short does not mean what it says
    tuning.others.clear();
    tuning.robustness.reset();
  }
  tuning.total_s = elapsed_s();
  return tuning;
}

}  // namespace shardwright::tuner
