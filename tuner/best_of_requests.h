// SPDX-License-Identifier: Apache-2.0
// The best plan of several requests on one framework, without the reasons: what a framework can be
// told is often no one space but a few (all layers recomputed, or none), each a request.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tuner/model_parallel_space.h"
#include "tuner/search.h"

namespace shardwright::tuner {

struct AskedPlans {
  Request request;
  /// Whose engine and which plans; data parallelism alone where neither is set.
  std::optional<Extent> model_parallel;
};

struct BestOfRequests {
  std::size_t index = 0;  // of the request
  std::optional<Found> best;
  std::string refusal;  // of the first request that contradicts itself, the model or the cluster
};

/// Later requests have to be better than earlier ones. Errors of a request are its refusal.
BestOfRequests best_of_requests(const Model& model, const std::vector<Scenario>& scenarios,
                                const std::vector<AskedPlans>& asked, const SearchOptions& options);

}  // namespace shardwright::tuner
