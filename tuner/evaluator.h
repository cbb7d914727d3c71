// SPDX-License-Identifier: Apache-2.0
// Judges one plan under one or several scenarios: what the prediction may be off by, or another
// network. A plan is as good as the worst scenario leaves it, and fits when it fits in all of them.
//
// Three judgements, each dearer and sharper than the one before: bounds of a whole family (closed
// form), the event simulation, and the full prediction with the caching allocator replayed. A score
// never falls from one to the next. Not thread-safe: one Evaluator for each thread.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/bounds/closed_form.h"
#include "sim/core/model.h"
#include "sim/predict.h"
#include "tuner/objective.h"

namespace shardwright::tuner {

struct Scenario {
  std::string name;  // "as predicted", "memory 5 % above the prediction"
  profiles::Profile profile;
  double memory_factor = 1;  // on what a plan is predicted to use
};

struct Criteria {
  Objective objective = Objective::kTime;
  double headroom = 0;  // share of the usable memory that stays free
  // Of plans that differ only in the number of recomputed layers, take the fastest; otherwise, on
  // stacks with a caching allocator, the one that recomputes least and fits. There the simulation
  // sometimes finds that recomputation hides copies of gradients and is faster than none, which no
  // published run shows.
  bool recompute_for_speed = false;
};

/// By number of checkpointed layers.
struct Bounds {
  std::vector<double> score;       // at most the score of the plan
  std::vector<Bytes> total_bytes;  // at most what the plan uses, runtime included
  std::vector<bool> may_fit;
};

struct Judgement {
  sim::Prediction prediction;  // in the first scenario
  double score = 0;            // the worst of all scenarios
  bool fits = true;            // in all scenarios, with the headroom, and without thrashing
  bool thrashes =
      false;  // the allocator must empty its cache in every step, though memory is enough
  Bytes excess_bytes = 0;  // beyond what may be used, in the worst scenario; negative: to spare
  bool complete = true;    // otherwise it does not fit, and nothing else is known
};

class Evaluator {
 public:
  /// `scenarios` outlives the evaluator; the first one is what is predicted.
  Evaluator(const Model& model, const std::vector<Scenario>& scenarios, const Criteria& criteria);

  Bounds bound(const Plan& family);
  /// Score by the event simulation; memory is not judged.
  double simulate(const Plan& plan);
  Judgement judge(const Plan& plan);
  /// The same of a plan that fits; of others sooner, and perhaps no more than that they do not.
  Judgement judge_whether_fits(const Plan& plan);

  /// Whether the full prediction knows more about a plan than bounds and simulation do.
  bool replays() const;

 private:
  double score(std::size_t scenario, const Plan& plan, double step_s, Bytes total_bytes) const;
  Bytes allowed_bytes(std::size_t scenario, std::int64_t ranks) const;
  Judgement judge(const Plan& plan, bool gives_up);

  const std::vector<Scenario>& scenarios_;
  Criteria criteria_;
  std::vector<sim::ClosedForm> closed_;
  std::vector<sim::Predictor> predictors_;
};

}  // namespace shardwright::tuner
