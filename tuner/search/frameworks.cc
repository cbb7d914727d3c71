// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/frameworks.h"

#include <utility>

#include "sim/core/base/error.h"

namespace shardwright::tuner {

FrameworkPlans plans_of(const Request& request, const Model& model,
                        const std::vector<Scenario>& scenarios, double headroom) {
  return {scenarios, space_of(request, model, scenarios.front().profile), headroom};
}

std::vector<FrameworkPlans> plans_of(const Request& request, const Model& model,
                                     const std::vector<Framework>& frameworks, bool robust) {
  std::vector<FrameworkPlans> plans;
  std::optional<InvalidPlan> first_error;
  for (const Framework& framework : frameworks) {
    Request own = request;
    if (&framework != &frameworks.front()) own.stack = framework.profile->stack.id;
    try {
      plans.push_back(
          plans_of(own, model, scenarios_of(*framework.profile, robust), framework.headroom));
    } catch (const InvalidPlan& error) {
      if (!first_error) first_error = error;
    }
  }
  if (plans.empty()) throw *first_error;
  return plans;
}

Search::Wanted of_framework(const FrameworkPlans& framework) {
  return [stack = framework.space.base.stack](const Plan& plan) { return plan.stack == stack; };
}

bool shares_data_alone(const Plan& plan, const Model& model, const FrameworkPlans& framework) {
  return plan.stack == framework.space.base.stack &&
         shares_data_alone(features_of(plan), model, framework.scenarios.front().profile.stack);
}

}  // namespace shardwright::tuner
