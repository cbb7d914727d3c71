// SPDX-License-Identifier: Apache-2.0
// Finds the best plans of a space, provably: bounds order the candidates, the cheapest judgement
// that can still be wrong is sharpened next, and a plan is reported only once its full prediction
// is no worse than what is left promises at best.
//
// This is best-first search with three keys that never fall: closed form <= event simulation <=
// full prediction. What it reports is the optimum of the space by construction, not by luck; what
// it never looks at in full is counted as pruned. Work is cut into rounds of fixed size, so that
// the result does not depend on the number of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sim/core/worker_pool.h"
#include "tuner/evaluator.h"
#include "tuner/space.h"

namespace shardwright::tuner {

struct Counts {
  std::int64_t considered = 0;  // plans of the space
  std::int64_t no_memory = 0;   // excluded: their allocated memory does not fit, by closed form
  std::int64_t simulated = 0;   // their step was simulated
  std::int64_t predicted = 0;   // in full, with the allocator
  std::int64_t no_reserve = 0;  // excluded: the full prediction does not fit
  std::int64_t pruned() const { return considered - simulated; }
};

/// What a search in progress tells whoever waits.
struct SearchProgress {
  const char* doing = "";  // "bounding", "simulating"
  std::int64_t configurations = 0;
  double seconds = 0;
  const sim::Prediction* best = nullptr;  // so far
};

struct SearchOptions {
  Criteria criteria;
  int threads = 0;                          // 0: one for each core
  const std::atomic<bool>* stop = nullptr;  // set from outside: end with the best so far
  std::function<void(const SearchProgress&)> progress;  // called by the searching thread
};

struct Found {
  sim::Prediction prediction;  // in the first scenario
  double score = 0;            // in the worst
  std::size_t family = 0;
  const Plan& plan() const { return prediction.plan; }
};

/// A plan that does not fit, and by how much.
struct Overshoot {
  Plan plan;
  Bytes excess_bytes = 0;
};

/// Whether a person would call the plans different: not only the number of checkpointed layers, of
/// buffers or the attention kernel is another.
bool different(const Plan& a, const Plan& b);

class Search {
 public:
  /// `model` and `scenarios` outlive the search.
  Search(const Model& model, const std::vector<Scenario>& scenarios, const Space& space,
         const SearchOptions& options);
  ~Search();

  /// The best plans that fit, best first, each of another kind (different() from the others); only
  /// of families that `wanted` takes. Of equally good plans the one that uses less memory comes
  /// first. Recomputation as Criteria says. Fewer when fewer fit, or when the search is stopped.
  std::vector<Found> best(std::size_t count,
                          const std::function<bool(const Plan&)>& wanted = nullptr);

  /// Plans no two of which are such that one is better in score, in memory and in arithmetic; steps
  /// of less than half a percent in score are left out. Ordered by score. On stacks with a caching
  /// allocator, memory is what is allocated.
  std::vector<Found> pareto();

  /// The plan of these families that comes closest to fitting, where none of them fits.
  std::optional<Overshoot> nearest(const std::function<bool(const Plan&)>& wanted = nullptr);

  /// Full predictions of plans of any kind, in parallel.
  std::vector<Judgement> judge(const std::vector<Plan>& plans);

  const Counts& counts() const { return counts_; }
  const std::vector<Family>& families() const { return families_; }
  const Criteria& criteria() const { return options_.criteria; }
  bool stopped() const;

 private:
  class Best;  // search_best.cc

  static constexpr std::size_t kSimulationsPerRound = 32;
  // Values of fewest_layers_ that are no number of layers.
  static constexpr std::int32_t kNotSettled = -1;
  static constexpr std::int32_t kNone = -2;  // none is wanted: fewer do in another family

  enum class Stage : std::uint8_t { kBounded, kSimulated, kJudged, kRejected };
  struct Candidate {
    double key;
    Bytes total_bytes;  // by closed form
    std::uint32_t family;
    std::int32_t ckpt_layers;
    Stage stage;
  };
  void bound_all();
  void collect(std::size_t family, const Bounds& bounds);
  Plan plan_of(const Candidate& candidate) const;
  /// The next dearer judgement of each; with `fully`, the last.
  void sharpen(const std::vector<std::uint32_t>& batch, bool fully = false);
  bool spares_recomputation() const;
  std::optional<std::uint32_t> first_that_fits(std::uint32_t begin, std::uint32_t end);
  bool is_hopeless(std::size_t family);
  std::optional<std::uint32_t> least_that_fits(std::size_t family);
  void reject_before(std::uint32_t found, std::size_t family);
  void settle(std::size_t family);
  std::optional<std::int32_t> layers_needed(const Plan& like);
  std::optional<std::size_t> family_like(const Plan& plan) const;
  bool is_spare(const Candidate& candidate) const;
  void reject(Candidate& candidate, Bytes excess_bytes);
  void measure_overshoots();
  /// Keeps a full judgement of a candidate, or rejects it; says whether it fits.
  bool take(std::uint32_t index, Judgement judgement);
  void tell(const char* doing);
  Found found(std::uint32_t index) const;
  std::optional<Found> any_judged(const std::vector<std::uint32_t>& open);

  const Model& model_;
  const std::vector<Scenario>& scenarios_;
  SearchOptions options_;
  std::chrono::steady_clock::time_point begin_, told_;
  std::vector<Family> families_;
  std::vector<std::size_t> kinds_;              // by family; equal where plans are not different()
  std::vector<std::uint32_t> first_candidate_;  // by family, and one past the last
  std::vector<std::int32_t> fewest_layers_;     // by family: that fit; once settled
  WorkerPool pool_;
  std::vector<std::unique_ptr<Evaluator>> evaluators_;  // by worker
  std::vector<Candidate> candidates_;                   // by family and ckpt_layers
  std::vector<Overshoot> overshoots_;                   // by family: the least, by closed form
  std::vector<std::uint32_t> unmeasured_;               // rejected, and nobody knows by how much
  std::map<std::uint32_t, Judgement> judged_;           // by candidate
  std::optional<Found> best_so_far_;
  Counts counts_;
  bool cut_short_ = false;
};

}  // namespace shardwright::tuner
