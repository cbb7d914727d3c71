// SPDX-License-Identifier: Apache-2.0
// Judges one plan under one or several scenarios: what the prediction may be off by, or another
// network. A plan is as good as the worst scenario leaves it, and fits when it fits in all of them.
//
// Three judgements, each dearer and sharper than the one before: bounds, the simulated step, and
// the full prediction with the caching allocator replayed. A score never falls from one to the
// next. Not thread-safe: one Evaluator for each thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiles/profile.h"
#include "sim/bounds/bounds.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/predict.h"
#include "tuner/search/request.h"

namespace shardwright::tuner {

// How a search ends from outside, between two evaluations of plans.

/// Thrown by an evaluation that is not wanted any more.
struct SearchEnded {};

struct SearchEnd {
  const std::atomic<bool>* stop = nullptr;     // end with the best plan so far, once there is one
  const std::atomic<bool>* give_up = nullptr;  // end without one, too
  std::atomic<bool> has_plan{false};

  bool is_stopped() const { return (stop != nullptr && stop->load()) || is_given_up(); }
  bool is_given_up() const { return give_up != nullptr && give_up->load(); }
  /// Within a search; outside one only giving up counts.
  void check() const {
    if (is_given_up() || (has_plan && is_stopped())) throw SearchEnded();
  }
  void check_given_up() const {
    if (is_given_up()) throw SearchEnded();
  }
};

// All that the tuner asks of the simulator about a plan: its prediction, and what is certain of its
// time and memory before it is predicted.
//
// Nothing else of the tuner knows how a plan is simulated. Times are kept by family, a number that
// plans share which differ only in how many layers they recompute.

/// Of one thread. The model and the profile outlive it.
class Simulator {
 public:
  Simulator(const Model& model, const profiles::Profile& profile,
            std::unique_ptr<sim::Predictor> predictor = nullptr);

  /// Throws Error when the plan contradicts the model or the cluster.
  sim::Prediction predict(const Plan& plan, const sim::PredictOptions& options = {});
  /// At most the time of its prediction; never less with more layers recomputed.
  double least_step_s(const Plan& plan, std::uint64_t family);
  /// At most what its prediction takes of a GPU, runtime included.
  Bytes least_bytes(const Plan& plan);
  /// The same, or sooner less where that is too much already.
  Bytes least_bytes_or_too_many(const Plan& plan);
  /// Whether that is what it takes; otherwise the allocator has its say.
  bool knows_bytes(const Plan& plan) const;
  /// For another simulator of the same model and profile; this one is not used any more.
  std::unique_ptr<sim::Predictor> give_up() { return std::move(predictor_); }

 private:
  sim::Predictor& predictor();

  const Model& model_;
  const profiles::Profile& profile_;
  std::unique_ptr<sim::Predictor> predictor_;                        // made when it is first asked
  std::unordered_map<std::uint64_t, std::vector<double>> families_;  // their least times
};

// Predictors between searches. What one has learned of a profile (programs, costs, units of
// pipelines) serves every search of it: other batches and numbers of GPUs, other frameworks' plans
// of the same stack, adverse scenarios that change no rate.

/// Of one model. Thread-safe.
class SimulatorPool {
 public:
  /// One of a profile that `physics` names; null where all are in use.
  std::unique_ptr<sim::Predictor> take(const std::string& physics);
  void give_back(const std::string& physics, std::unique_ptr<sim::Predictor> predictor);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::unique_ptr<sim::Predictor>>> at_rest_;
};

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
  LeastMemory least_memory(const Plan& plan);
  /// The same, or sooner less where that is too much already.
  LeastMemory least_memory_or_too_much(const Plan& plan);
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
