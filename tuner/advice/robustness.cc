// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/robustness.h"

#include <utility>

namespace shardwright::tuner {

namespace {

constexpr double kNoticeable = 0.01;

}  // namespace

bool Robustness::flips(std::size_t plan, std::size_t in_case, double behind) const {
  const Stress& stressed = stress[plan][in_case];
  return !stressed.fits || stressed.behind > behind + kNoticeable;
}

Robustness robustness_of(const Search& search, std::size_t framework,
                         const std::vector<Scenario>& cases, SearchOptions options,
                         const std::vector<Plan>& plans) {
  options.progress = nullptr;
  Robustness result;
  result.stress.resize(plans.size());
  for (const Scenario& scenario : cases) {
    Search again(search, framework, scenario, options);
    std::vector<Found> best = again.best(1);
    const std::vector<Judgement> judgements = again.judge(plans);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Judgement& judgement = judgements[i];
      result.stress[i].push_back({judgement.fits, judgement.thrashes, judgement.excess_bytes,
                                  judgement.score,
                                  best.empty() ? 0 : judgement.score / best.front().score - 1});
    }
    Robustness::Case& kept = result.cases.emplace_back();
    kept.scenario = scenario.name;
    if (!best.empty()) kept.best = std::move(best.front());
  }
  return result;
}

}  // namespace shardwright::tuner
