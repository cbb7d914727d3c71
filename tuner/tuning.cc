// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuning.h"

#include "tuner/scenarios.h"

namespace shardwright::tuner {

DataParallelTuner::DataParallelTuner(const Model& model, const profiles::Profile& profile,
                                     const Request& request, const TuneOptions& options)
    : begin_(std::chrono::steady_clock::now()),
      model_(model),
      profile_(profile),
      request_(request),
      options_(options),
      scenarios_(scenarios_of(profile, options.robust)),
      space_(space_of(request, model, profile)),
      search_(model, scenarios_, space_, options.search),
      top_(search_.best(options.top)) {
  if (top_.empty() || search_.stopped()) return;
  Found choice = top_.front();
  steps_ = climb(choice, [&](const Found& found) {
    return knob_steps(search_, request_, space_, model_, profile_, found);
  });
  put_first(top_, std::move(choice), different);
}

double DataParallelTuner::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

std::optional<Judgement> DataParallelTuner::closest() {
  if (!top_.empty() || search_.stopped()) return std::nullopt;
  const std::optional<Overshoot> nearest = search_.nearest();
  if (!nearest) return std::nullopt;
  return search_.judge({nearest->plan}).front();
}

Tuning DataParallelTuner::answer() {
  Tuning tuning;
  tuning.strategies = space_.strategies;
  tuning.top = top_;
  if (!tuning.top.empty() && !search_.stopped()) tuning.pareto = search_.pareto();
  tuning.counts = search_.counts();
  tuning.search_s = elapsed_s();
  if (!search_.stopped()) {
    if (tuning.top.empty()) {
      tuning.advice = advise(search_, model_, scenarios_, request_, options_.search);
    } else {
      const Found& choice = tuning.top.front();
      tuning.steps = steps_;
      tuning.others = other_strategies(search_, space_, choice);
      std::vector<Plan> plans;
      for (const Found& found : tuning.top) plans.push_back(found.plan());
      tuning.robustness =
          robustness_of(model_, adverse_scenarios(profile_), space_, options_.search, plans);
    }
  }
  tuning.stopped = search_.stopped();
  if (tuning.stopped) {  // what was cut short does not mean what it says
    tuning.others.clear();
    tuning.robustness.reset();
  }
  tuning.total_s = elapsed_s();
  return tuning;
}

Tuning tune(const Model& model, const profiles::Profile& profile, const Request& request,
            const TuneOptions& options) {
  return DataParallelTuner(model, profile, request, options).answer();
}

}  // namespace shardwright::tuner
