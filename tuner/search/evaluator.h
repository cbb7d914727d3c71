// SPDX-License-Identifier: Apache-2.0
// Judges one plan under one or several scenarios: what the prediction may be off by, or another
// network. A plan is as good as the worst scenario leaves it, and fits when it fits in all of them.
//
// Three judgements, each dearer and sharper than the one before: bounds, the simulated step, and
// the full prediction with the caching allocator replayed. A score never falls from one to the
// next. Not thread-safe: one Evaluator for each thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "tuner/search/objective.h"
#include "tuner/search/search_end.h"
#include "tuner/search/simulator.h"
#include "tuner/search/simulator_pool.h"

namespace shardwright::tuner {

struct Scenario {
  std::string name;  // "as predicted", "memory 5 % above the prediction"
  profiles::Profile profile;
  double memory_factor = 1;  // on what a plan is predicted to use
  std::string physics = {};  // profiles of the same name are equal; empty: of no name
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

struct Judgement {
  sim::Prediction prediction;  // in the first scenario
  double score = 0;            // the worst of all scenarios
  bool fits = true;            // in all scenarios, with the headroom, and without thrashing
  /// The allocator must empty its cache in every step, though memory is enough.
  bool thrashes = false;
  Bytes excess_bytes = 0;  // beyond what may be used, in the worst scenario; negative: to spare
  bool complete = true;    // otherwise it does not fit, and nothing else is known
};

class Evaluator {
 public:
  /// `model` and `scenarios` outlive the evaluator; the first scenario is what is predicted.
  /// `pool` may be null. With `end`, which outlives the evaluator, all throw SearchEnded by it.
  Evaluator(const Model& model, const std::vector<Scenario>& scenarios, const Criteria& criteria,
            SimulatorPool* pool = nullptr, const SearchEnd* end = nullptr);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept = default;
  Evaluator& operator=(Evaluator&&) = delete;

  /// At most the score of the plan; `family` as of Simulator.
  double least_score(const Plan& plan, std::uint64_t family);
  /// At most what the plan uses in the first scenario, and how far beyond what it may it is at
  /// least, in the worst of all.
  struct LeastMemory {
    Bytes bytes = 0, excess_bytes = 0;
  };
  LeastMemory least_memory(const Plan& plan, std::uint64_t family);
  /// The same of a plan whose family nobody may ask about.
  LeastMemory least_memory(const Plan& plan);
  /// Whether that leaves room, sooner.
  bool may_fit(const Plan& plan);
  /// Score by the simulated step; memory is not judged.
  double simulate(const Plan& plan);
  Judgement judge(const Plan& plan);
  /// The same of a plan that fits; of others sooner, and perhaps no more than that they do not.
  Judgement judge_whether_fits(const Plan& plan);

  /// Whether the full prediction knows more of the plan's memory than least_memory() does.
  bool replays(const Plan& plan) const { return !simulators_.front().knows_bytes(plan); }

 private:
  void check_end() const {
    if (end_ != nullptr) end_->check();
  }
  double score(std::size_t scenario, const Plan& plan, double step_s, Bytes total_bytes) const;
  Bytes allowed_bytes(std::size_t scenario, std::int64_t ranks) const;
  Judgement judge(const Plan& plan, bool gives_up);
  template <typename LeastBytes>
  LeastMemory worst_memory(const Plan& plan, const LeastBytes& least_bytes) const;

  const std::vector<Scenario>& scenarios_;
  Criteria criteria_;
  SimulatorPool* pool_;
  const SearchEnd* end_;
  std::vector<Simulator> simulators_;  // by scenario
};

}  // namespace shardwright::tuner
