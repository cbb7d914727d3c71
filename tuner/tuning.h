// SPDX-License-Identifier: Apache-2.0
// All that `tune` answers: the best plan, its candidates, why it is the best, whether it stays so,
// and what to change when nothing fits.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tuner/advice.h"
#include "tuner/knob_steps.h"
#include "tuner/other_strategies.h"
#include "tuner/robustness.h"
#include "tuner/scenarios.h"
#include "tuner/search.h"

namespace shardwright::tuner {

struct TuneOptions {
  SearchOptions search;
  bool robust = false;  // the best under the worst of the adverse scenarios
  std::size_t top = 10;
};

/// The best of the candidates that lost (candidates.h).
struct OtherFramework {
  std::string stack;                 // several: joined by " or "
  std::optional<Found> best;         // none: nothing fits, or nothing is better than the choice
  std::string refusal;               // why there is no plan of it, in words
  std::optional<Judgement> closest;  // to fitting, where nothing fits
  double cost = 0;                   // of `best`: its score against the choice's, minus 1
  bool within_uncertainty = false;   // the two predictions cannot tell `best` and the choice apart
};

/// The best plan that this project's executor runs, where the best of all is another's and the
/// prediction of that does not tell the two apart.
struct NativePlan {
  Found best;
  profiles::Profile profile;
  double cost = 0;  // its score against the choice's, minus 1
};

struct Tuning {
  std::vector<Strategy> strategies;  // of the space
  std::vector<Found> top;            // best first; empty: nothing fits
  std::vector<Found> pareto;
  std::vector<KnobStep> steps;
  std::vector<OtherStrategy> others;
  std::optional<Robustness> robustness;  // of `top`; none when stopped
  std::optional<Advice> advice;          // when nothing fits
  Counts counts;                         // of the search for all of the above but robustness
  double search_s = 0, total_s = 0;
  bool stopped = false;         // from outside: the best so far
  bool model_parallel = false;  // the answer is a model-parallel plan; `others` are none then
  std::optional<profiles::Profile> profile;  // of a model-parallel answer
  std::int64_t usual_global_batch = 0;  // of a model-parallel answer, where the request gave none
  std::optional<OtherFramework> other;
  std::optional<NativePlan> native;
};

/// The search over data-parallel plans of one request.
class DataParallelTuner {
 public:
  /// All of it outlives the tuner. Throws Error when the request contradicts itself, the model or
  /// the cluster.
  DataParallelTuner(const Model& model, const profiles::Profile& profile, const Request& request,
                    const TuneOptions& options);
  /// The best plans, best first; empty: nothing fits.
  const std::vector<Found>& top() const { return top_; }
  bool stopped() const { return search_.stopped(); }
  /// Where nothing fits, the plan that comes closest.
  std::optional<Judgement> closest();
  /// With the reasons.
  Tuning answer();

 private:
  double elapsed_s() const;

  std::chrono::steady_clock::time_point begin_;
  const Model& model_;
  const profiles::Profile& profile_;
  const Request& request_;
  const TuneOptions& options_;
  std::vector<Scenario> scenarios_;
  Space space_;
  Search search_;
  std::vector<Found> top_;
  std::vector<KnobStep> steps_;  // of the best plan
};

/// Of data parallelism alone. Throws Error as DataParallelTuner does.
Tuning tune(const Model& model, const profiles::Profile& profile, const Request& request,
            const TuneOptions& options = {});

}  // namespace shardwright::tuner
