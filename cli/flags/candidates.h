// SPDX-License-Identifier: Apache-2.0
// Which frameworks a search goes through: the one that was named, or those that are usual for data
// parallelism and for model parallelism.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "tuner/candidates.h"
#include "tuner/space.h"

namespace shardwright::cli {

struct FrameworkCandidates {
  struct Parallel {
    profiles::Profile profile;
    tuner::Extent extent = tuner::Extent::kAll;
  };
  std::optional<profiles::Profile> plain;  // as tuner::Candidates
  std::vector<Parallel> parallel;
  std::string plain_refusal;
  std::optional<profiles::Profile> native;  // this project's executor, where it trains the model

  tuner::Candidates candidates(std::optional<double> headroom, std::int64_t gpus) const;
};

/// `job` is resolve_base()'s and `request` what its flags hold fixed. Throws Error where the
/// software that was named cannot do what is held fixed.
FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request);

}  // namespace shardwright::cli
