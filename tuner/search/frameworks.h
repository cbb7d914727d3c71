// SPDX-License-Identifier: Apache-2.0
// The frameworks that a search goes through, and their plans of one request.
#pragma once

#include <optional>
#include <vector>

#include "tuner/search/robustness.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

struct Framework {
  const profiles::Profile* profile = nullptr;  // of it on the cluster
  double headroom = 0;                         // Criteria::headroom of its plans
};

/// The plans of those frameworks that do what the request holds fixed. Throws Error as space_of()
/// does where there is none.
std::vector<FrameworkPlans> plans_of(const Request& request, const Model& model,
                                     const std::vector<Framework>& frameworks, bool robust);

/// The plans of one framework in scenarios of one's own.
FrameworkPlans plans_of(const Request& request, const Model& model,
                        const std::vector<Scenario>& scenarios, double headroom);

/// Whether a plan is that framework's.
Search::Wanted of_framework(const FrameworkPlans& framework);

/// Whether a plan is that framework's, and its ranks share data alone.
bool shares_data_alone(const Plan& plan, const Model& model, const FrameworkPlans& framework);

}  // namespace shardwright::tuner
