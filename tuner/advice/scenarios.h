// SPDX-License-Identifier: Apache-2.0
// What a prediction may be off by, as scenarios in which plans can be judged: memory in use above
// the prediction, links slower than predicted.
#pragma once

#include <vector>

#include "profiles/profile.h"
#include "tuner/search/evaluator.h"

namespace shardwright::tuner {

inline constexpr double kMemoryAbove = 0.05;
inline constexpr double kBandwidthBelow = 0.20;

Scenario as_predicted(const profiles::Profile& profile);

/// All that predictions in a profile depend on, in words that are the same of equal profiles.
std::string physics_of(profiles::Profile profile);

/// More memory in use, and slower links between GPUs and between nodes: one scenario for each.
std::vector<Scenario> adverse_scenarios(const profiles::Profile& profile);

/// What a search judges plans in: as predicted, and where the answer has to be `robust` in the
/// adverse ones, too.
std::vector<Scenario> scenarios_of(const profiles::Profile& profile, bool robust);

}  // namespace shardwright::tuner
