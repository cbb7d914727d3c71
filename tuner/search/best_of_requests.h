// SPDX-License-Identifier: Apache-2.0
// The best plan of several requests on one framework, without the reasons: what a framework can be
// told is often no one space but a few (all layers recomputed, or none), each a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuner/search/request.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

/// Which plans of a request.
enum class Extent : std::uint8_t {
  kAll,
  kDataAlone,      // ranks share nothing but data
  kModelParallel,  // they share more
};

struct AskedPlans {
  Request request;
  Extent extent = Extent::kAll;
};

/// The request whose space has exactly those plans, but for kModelParallel, whose has all.
Request request_of(const AskedPlans& asked);

struct BestOfRequests {
  std::size_t index = 0;  // of the request
  std::optional<Found> best;
  std::string refusal;  // of the first request that contradicts itself, the model or the cluster
};

/// Later requests have to be better than earlier ones. Errors of a request are its refusal.
BestOfRequests best_of_requests(const Model& model, const std::vector<Scenario>& scenarios,
                                const std::vector<AskedPlans>& asked, const SearchOptions& options);

}  // namespace shardwright::tuner
