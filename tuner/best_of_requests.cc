// SPDX-License-Identifier: Apache-2.0
#include "tuner/best_of_requests.h"

#include <utility>

#include "sim/core/error.h"
#include "tuner/model_parallel_search.h"

namespace shardwright::tuner {
namespace {

std::vector<Found> search_one(const Model& model, const std::vector<Scenario>& scenarios,
                              const AskedPlans& asked, const SearchOptions& options,
                              std::optional<double> below) {
  const profiles::Profile& profile = scenarios.front().profile;
  Request request = asked.request;
  request.stack = profile.stack.id;
  if (asked.model_parallel) {
    const ModelParallelSpace space =
        model_parallel_space(request, model, profile, *asked.model_parallel);
    return ModelParallelSearch(model, scenarios, space, options).best(1, below);
  }
  return Search(model, scenarios, space_of(request, model, profile), options).best(1);
}

}  // namespace

BestOfRequests best_of_requests(const Model& model, const std::vector<Scenario>& scenarios,
                                const std::vector<AskedPlans>& asked,
                                const SearchOptions& options) {
  BestOfRequests result;
  SearchOptions quiet = options;
  quiet.progress = nullptr;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (quiet.stop != nullptr && quiet.stop->load()) break;
    std::optional<double> below;
    if (result.best) below = result.best->score;
    try {
      std::vector<Found> found = search_one(model, scenarios, asked[i], quiet, below);
      if (found.empty() || (below && found.front().score >= *below)) continue;
      result.best = std::move(found.front());
      result.index = i;
    } catch (const Error& error) {
      if (result.refusal.empty()) result.refusal = error.what();
    }
  }
  return result;
}

}  // namespace shardwright::tuner
