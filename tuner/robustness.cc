// SPDX-License-Identifier: Apache-2.0
#include "tuner/robustness.h"

#include <utility>

#include "tuner/model_parallel_search.h"

namespace shardwright::tuner {

namespace {

constexpr double kNoticeable = 0.01;

template <typename AnySearch, typename AnySpace>
Robustness searched_again(const Model& model, const std::vector<Scenario>& cases,
                          const AnySpace& space, SearchOptions options,
                          const std::vector<Plan>& plans) {
  options.progress = nullptr;
  Robustness result;
  result.stress.resize(plans.size());
  for (const Scenario& scenario : cases) {
    const std::vector<Scenario> alone{scenario};
    AnySearch search(model, alone, space, options);
    std::vector<Found> best = search.best(1);
    const std::vector<Judgement> judgements = search.judge(plans);
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

}  // namespace

bool Robustness::flips(std::size_t plan, std::size_t in_case, double behind) const {
  const Stress& stressed = stress[plan][in_case];
  return !stressed.fits || stressed.behind > behind + kNoticeable;
}

Robustness robustness_of(const Model& model, const std::vector<Scenario>& cases, const Space& space,
                         SearchOptions options, const std::vector<Plan>& plans) {
  return searched_again<Search>(model, cases, space, std::move(options), plans);
}

Robustness robustness_of(const Model& model, const std::vector<Scenario>& cases,
                         const ModelParallelSpace& space, SearchOptions options,
                         const std::vector<Plan>& plans) {
  return searched_again<ModelParallelSearch>(model, cases, space, std::move(options), plans);
}

}  // namespace shardwright::tuner
