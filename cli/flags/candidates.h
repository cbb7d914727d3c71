// SPDX-License-Identifier: Apache-2.0
// Which frameworks a search goes through: the one that was named, or those that are usual for data
// parallelism and for model parallelism.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "tuner/search/request.h"
#include "tuner/search/tuning.h"

namespace shardwright::cli {

struct FrameworkCandidates {
  std::vector<profiles::Profile> searched;  // as tuner::Frameworks
  std::string refusal;
  std::optional<profiles::Profile> native;  // this project's executor, where it trains the model

  tuner::Frameworks frameworks(std::optional<double> headroom, std::int64_t gpus) const;
};

/// `job` is resolve_base()'s and `request` what its flags hold fixed. Throws Error where the
/// software that was named cannot do what is held fixed.
FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request);

}  // namespace shardwright::cli
