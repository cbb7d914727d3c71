// SPDX-License-Identifier: Apache-2.0
// Whether a choice survives a prediction that was too kind: plans judged in each adverse scenario,
// beside the plan that is best there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuner/model_parallel_space.h"
#include "tuner/search.h"

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

/// Searches the space again in every scenario of `cases`, each by itself. `options` as of the
/// search that found `plans`; its progress is not told.
Robustness robustness_of(const Model& model, const std::vector<Scenario>& cases, const Space& space,
                         SearchOptions options, const std::vector<Plan>& plans);
Robustness robustness_of(const Model& model, const std::vector<Scenario>& cases,
                         const ModelParallelSpace& space, SearchOptions options,
                         const std::vector<Plan>& plans);

}  // namespace shardwright::tuner
