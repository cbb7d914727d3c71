// SPDX-License-Identifier: Apache-2.0
// Finds the best model-parallel plans, provably: memory first, then a lower bound on the
// time, then the full prediction, best first.
//
// A candidate is a parallel layout (model_parallel_space.h) with one way to recompute.
// Recomputation only adds work, so of every division the plan that recomputes nothing is tried
// first, and only where that does not fit its policies, each with the fewest layers that fit:
// memory falls with every layer, so that number is found by bisection. A candidate's key is the
// lower bound of sim/parallel/parallel_bound.cc, then its score; keys only rise, so whoever stands
// in front with a score is the best of all that is left. What never comes to the front is pruned.
// Rounds have a fixed size, so answers and counts do not depend on the number of threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/core/worker_pool.h"
#include "tuner/model_parallel_space.h"
#include "tuner/search.h"

namespace shardwright::tuner {

/// Whether a person would call the plans different: not only in chunks, micro-batch or
/// recomputation.
bool different_layouts(const Plan& a, const Plan& b);

class ModelParallelSearch {
 public:
  /// All but the options outlive the search.
  ModelParallelSearch(const Model& model, const std::vector<Scenario>& scenarios,
                      const ModelParallelSpace& space, const SearchOptions& options);
  ~ModelParallelSearch();

  /// The best plans that fit, best first, each another division of the model; none whose score is
  /// `below` or more. Fewer when fewer fit, or when the search is stopped.
  std::vector<Found> best(std::size_t count, std::optional<double> below = std::nullopt);
  /// Plans no two of which are such that one is better in score and in memory, at most `most` of
  /// them, in steps of `step` of the memory; by score.
  std::vector<Found> pareto(std::size_t most = 8, double step = 0.07);
  /// The plan that comes closest to fitting, where none of those looked at fits.
  std::optional<Overshoot> nearest() const { return nearest_; }
  std::vector<Judgement> judge(const std::vector<Plan>& plans);

  const Counts& counts() const { return counts_; }
  bool stopped() const;

 private:
  class Worker;
  class Queue;
  enum class Stage : std::uint8_t { kBounded, kFits, kJudged };
  struct Candidate {
    double key = 0;
    Bytes total_bytes = 0;  // once known
    std::uint32_t layout = 0;
    std::int16_t recomputation = -1;  // -1: nothing recomputed
    std::int16_t step = 0;            // of the layers; 0: not settled
    Stage stage = Stage::kBounded;
    std::uint32_t judged = 0;
  };
  /// What a worker finds out about a candidate.
  struct Outcome {
    std::vector<Candidate> next;
    std::optional<Judgement> judgement;
    std::optional<Overshoot> overshoot;
    std::int64_t misfits = 0;  // plans that are known not to fit
  };

  Plan plan_of(const Candidate& candidate) const;
  void bound_all();
  Outcome look(Worker& worker, const Candidate& candidate, Bytes limit) const;
  void settle(Worker& worker, const Candidate& candidate, Bytes limit, Outcome& outcome) const;
  std::vector<Found> run(std::size_t count, std::optional<double> below, Bytes limit, bool counts);
  void tell(const char* doing);

  const Model& model_;
  const std::vector<Scenario>& scenarios_;
  const ModelParallelSpace& space_;
  SearchOptions options_;
  std::chrono::steady_clock::time_point begin_, told_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Candidate> start_;  // every division, bounded
  std::vector<Judgement> judgements_;
  std::optional<Overshoot> nearest_;
  Counts counts_;
  bool cut_short_ = false;
};

}  // namespace shardwright::tuner
