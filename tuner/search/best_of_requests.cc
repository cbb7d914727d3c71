// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/best_of_requests.h"

#include <utility>

#include "sim/core/base/invalid_plan.h"
#include "tuner/search/frameworks.h"

namespace shardwright::tuner {
namespace {

bool shares_more_than_data(const Plan& plan) {
  return plan.parallel.replica() > 1 || plan.parallel.ep > 1;
}

std::vector<Found> search_one(const Model& model, const std::vector<Scenario>& scenarios,
                              const AskedPlans& asked, const SearchOptions& options,
                              std::optional<double> below) {
  Request request = request_of(asked);
  request.stack = scenarios.front().profile.stack.id;
  Search search(model, {plans_of(request, model, scenarios, options.criteria.headroom)}, options);
  const bool filters = asked.extent == Extent::kModelParallel;
  return search.best(1, filters ? shares_more_than_data : Search::Wanted(), below);
}

}  // namespace

Request request_of(const AskedPlans& asked) {
  return asked.extent == Extent::kDataAlone ? sharing_data_alone(asked.request) : asked.request;
}

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
    } catch (const InvalidPlan& error) {
      if (result.refusal.empty()) result.refusal = error.what();
    }
  }
  return result;
}

}  // namespace shardwright::tuner
