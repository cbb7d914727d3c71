// SPDX-License-Identifier: Apache-2.0
// The best plan of each framework, among those that it can be told (told.h).
#pragma once

#include <string>
#include <vector>

#include "cli/export/told.h"
#include "sim/job.h"
#include "tuner/advice/tuning.h"

namespace shardwright::cli {

struct FrameworkPlan {
  const ToldFramework* framework = nullptr;
  profiles::Profile profile;             // with what the framework sets
  std::vector<tuner::AskedPlans> asked;  // empty: the request is none of its
  tuner::BestOfRequests found;
  double headroom = 0;

  /// Why it has no plan at all; empty where it has one, or where none fits.
  const std::string& refusal() const { return found.refusal; }
};

struct FrameworkSearch {
  tuner::SearchOptions options;
  std::optional<double> headroom;  // of all; not given: what each framework's memory asks for
  bool robust = false;
};

/// In the order of `frameworks`.
std::vector<FrameworkPlan> framework_plans(const sim::Job& job, const tuner::Request& request,
                                           const std::vector<const ToldFramework*>& frameworks,
                                           const FrameworkSearch& search);

/// The one whose best plan has the least score; of those where nothing fits the first. Throws Error
/// with the first refusal where none has a plan at all.
const FrameworkPlan& best_of_frameworks(const std::vector<FrameworkPlan>& plans);

/// For the whole answer about `plan`'s framework.
tuner::Frameworks frameworks_for(const FrameworkPlan& plan);

}  // namespace shardwright::cli
