// SPDX-License-Identifier: Apache-2.0
#include "cli/export/framework_plans.h"

#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/layout.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/search/robustness.h"

namespace shardwright::cli {

std::vector<FrameworkPlan> framework_plans(const sim::Job& job, const tuner::Request& request,
                                           const std::vector<const ToldFramework*>& frameworks,
                                           const FrameworkSearch& search) {
  std::vector<FrameworkPlan> plans;
  for (const ToldFramework* framework : frameworks) {
    FrameworkPlan& plan = plans.emplace_back();
    plan.framework = framework;
    try {
      std::vector<std::string> overrides = job.overrides;
      for (std::string& value : overrides_of(*framework)) overrides.push_back(std::move(value));
      plan.profile = profiles::make_profile(
          job.cluster_file, profiles::load_stack(stack_of(*framework, request)), overrides);
      plan.profile.cluster = filled(std::move(plan.profile.cluster), request.gpus);
      plan.asked = told_requests(*framework, request, job.model);
    } catch (const InvalidPlan& error) {
      plan.asked.clear();
      plan.found.refusal = error.what();
      continue;
    }
    tuner::SearchOptions options = search.options;
    plan.headroom = search.headroom.value_or(sim::asked_headroom(plan.profile, request.gpus));
    options.criteria.headroom = plan.headroom;
    plan.found = tuner::best_of_requests(
        job.model, tuner::scenarios_of(plan.profile, search.robust), plan.asked, options);
  }
  return plans;
}

const FrameworkPlan& best_of_frameworks(const std::vector<FrameworkPlan>& plans) {
  const FrameworkPlan* best = nullptr;
  for (const FrameworkPlan& plan : plans) {
    if (!plan.found.best) continue;
    if (best == nullptr || plan.found.best->score < best->found.best->score) best = &plan;
  }
  if (best != nullptr) return *best;
  for (const FrameworkPlan& plan : plans) {
    if (!plan.asked.empty() && plan.refusal().empty()) return plan;
  }
  throw InvalidPlan(plans.front().refusal());
}

tuner::Frameworks frameworks_for(const FrameworkPlan& plan) {
  tuner::Frameworks frameworks;
  frameworks.searched.push_back({&plan.profile, plan.headroom});
  return frameworks;
}

}  // namespace shardwright::cli
