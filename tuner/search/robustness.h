// SPDX-License-Identifier: Apache-2.0
// Whether a choice survives a prediction that was too kind: plans judged in each adverse scenario,
// beside the plan that is best there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "tuner/search/evaluator.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

/// One plan in one scenario.
struct Stress {
  bool fits = false;
  bool thrashes = false;   // see Judgement
  Bytes excess_bytes = 0;  // negative: to spare
  double score = 0;
  double behind = 0;  // the best plan's lead there, as a share of that plan's score
};

struct Robustness {
  struct Case {
    std::string scenario;
    std::optional<Found> best;  // none: nothing fits there
  };
  std::vector<Case> cases;
  std::vector<std::vector<Stress>> stress;  // by plan, then by case

  /// Whether the plan no longer fits in the case, or another is then ahead of it by a percent more
  /// than `behind`, which is what the best plan is ahead of it as predicted.
  bool flips(std::size_t plan, std::size_t in_case, double behind) const;
};

/// Searches the plans of a framework of `search` again in every scenario of `cases`, each by itself
/// and none kinder than what `search` was asked. `options` as of that search; progress is not told.
Robustness robustness_of(const Search& search, std::size_t framework,
                         const std::vector<Scenario>& cases, SearchOptions options,
                         const std::vector<Plan>& plans);

// What a prediction may be off by, as scenarios in which plans can be judged: memory in use above
// the prediction, links slower than predicted.

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
