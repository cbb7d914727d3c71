// SPDX-License-Identifier: Apache-2.0
// Finds the best plans of one or several spaces, provably: bounds order what is left, the cheapest
// judgement that can still be wrong is sharpened next, and a plan is reported only once its full
// prediction is no worse than what is left promises at best.
//
// This is best-first search with keys that never fall: bound <= simulated step <= full prediction.
// What it reports is the optimum of the spaces by construction, not by luck; what it never looks at
// in full is counted as pruned. Spaces of several frameworks are one queue, so the best so far of
// one prunes the others. Work is cut into rounds of fixed size, so that the result does not depend
// on the number of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/core/base/worker_pool.h"
#include "tuner/search/evaluator.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

struct Counts {
  std::int64_t considered = 0;  // plans of the spaces
  std::int64_t no_memory = 0;   // excluded: by the bound of their memory they do not fit
  std::int64_t simulated = 0;   // their step was simulated
  std::int64_t predicted = 0;   // in full
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
  int threads = 0;                             // 0: one for each core
  int looks_per_round = 32;                    // of which an eighth may be full predictions
  const std::atomic<bool>* stop = nullptr;     // of SearchEnd
  const std::atomic<bool>* give_up = nullptr;  // of SearchEnd
  std::function<void(const SearchProgress&)> progress;  // called by the searching thread
  SimulatorPool* simulators = nullptr;                  // of the model, shared with other searches
};

/// The plans of one framework.
struct FrameworkPlans {
  std::vector<Scenario> scenarios;  // the first is what is predicted
  Space space;
  double headroom = 0;  // Criteria::headroom of these plans
};

struct Found {
  sim::Prediction prediction;  // in the first scenario
  double score = 0;            // in the worst
  std::size_t framework = 0;   // whose plan it is
  const Plan& plan() const { return prediction.plan; }
};

/// A plan that does not fit, and by how much.
struct Overshoot {
  Plan plan;
  Bytes excess_bytes = 0;
  std::size_t framework = 0;
};

/// Whether a person would call the plans different: another strategy, arithmetic or way to share a
/// replica; where every rank has a replica of its own, another batch or recomputation, too. Not
/// only the number of recomputed layers, of chunks, of buffers or the attention kernel.
bool different(const Plan& a, const Plan& b);

class Search {
 public:
  using Wanted = std::function<bool(const Plan&)>;

  /// `model` outlives the search.
  Search(const Model& model, std::vector<FrameworkPlans> frameworks, const SearchOptions& options);
  /// Of one framework, in several scenarios or in one.
  Search(const Model& model, std::vector<Scenario> scenarios, Space space,
         const SearchOptions& options);
  Search(const Model& model, Scenario scenario, Space space, const SearchOptions& options);
  /// Of one framework of `kinder` in a scenario where no plan is better than there: its bounds hold
  /// here, too, and are made anew only for plans that they do not rule out.
  Search(const Search& kinder, std::size_t framework, const Scenario& scenario,
         const SearchOptions& options);
  ~Search();

  /// The best plans that fit, best first, each of another kind (different() from the others); only
  /// those that `wanted` takes, by what they are without recomputation, and none whose score is
  /// `below` or more. Of equally good plans the one that uses less memory comes first.
  /// Recomputation as Criteria says. Fewer when fewer fit, or when the search is stopped.
  std::vector<Found> best(std::size_t count, const Wanted& wanted = nullptr,
                          std::optional<double> below = std::nullopt);

  /// Plans no two of which are such that one is better in score and in memory, at most `most` of
  /// them in steps of `step` of the memory; by score.
  std::vector<Found> pareto(const Wanted& wanted = nullptr, std::size_t most = 12,
                            double step = 0.05);

  /// The plan that comes closest to fitting, of those that were looked at.
  std::optional<Overshoot> nearest(const Wanted& wanted = nullptr);

  /// Full predictions of plans of any kind by one of the frameworks, in parallel. Throws
  /// SearchEnded when given up.
  std::vector<Judgement> judge(const std::vector<Plan>& plans, std::size_t framework = 0);

  const Counts& counts() const { return counts_; }
  const std::vector<FrameworkPlans>& frameworks() const { return frameworks_; }
  bool stopped() const;

 private:
  class Best;

  /// How much is known, from little to all. A candidate is replaced by what it opens into.
  enum class Stage : std::uint8_t {
    kPromised,   // somebody else's bound
    kOpen,       // how it recomputes is not decided; no way is faster
    kRest,       // the same, without the plan that recomputes nothing
    kPolicy,     // in how many layers a policy recomputes is not decided; `step` or more
    kBounded,    // one plan, and its memory may fit
    kSimulated,  // its step is known
    kJudged,     // all is known, and it fits
    kGone        // it does not fit, or others took its place
  };
  static constexpr std::int16_t kNothing = -1;  // Candidate::policy that recomputes nothing
  struct Candidate {
    double key = 0;
    Bytes bytes = 0;  // at least; all of them once judged
    std::uint32_t setting = 0;
    std::int32_t step = 0;  // of Space::steps
    std::int16_t policy = kNothing;
    Stage stage = Stage::kOpen;
    bool spare = false;     // recomputes more than memory requires
    bool followed = false;  // by the plan of its policy that recomputes one step more
    bool hopeless = false;  // it is gone because not even all layers recomputed make it fit
  };
  /// One plan of a space, and how much it recomputes left open.
  struct Setting {
    std::uint32_t plan = 0;
    std::uint16_t framework = 0;
    bool replays = false;  // its full prediction knows more of memory than bounds do
    bool places = false;   // because every pass of its pipeline is given its place
    bool spares = false;   // it recomputes only as far as memory requires
  };
  /// The least excess over memory among the plans of a setting that do not fit.
  struct Shortage {
    Bytes excess_bytes;
    std::int32_t step = 0;
    std::int16_t policy = kNothing;
  };
  /// What a look at a candidate brings to light.
  struct Outcome {
    std::vector<Candidate> next;
    std::optional<Judgement> judgement;
    std::optional<double> score;  // simulated
    std::vector<Shortage> shortages;
    std::int64_t misfits = 0;  // plans that are known not to fit
  };

  /// Of plans that differ in how many layers a policy recomputes, and of one of them.
  static std::uint64_t family_of(std::uint32_t setting, std::int16_t policy) {
    return (std::uint64_t{setting} << 32U) | (static_cast<std::uint64_t>(policy + 1) << 24U);
  }
  static std::uint64_t key_of(const Candidate& candidate) {
    return family_of(candidate.setting, candidate.policy) |
           static_cast<std::uint64_t>(candidate.step);
  }

  void start();
  void bound_all();
  std::vector<std::uint32_t> by_units() const;
  void bound(Evaluator& evaluator, Candidate& candidate, Outcome& outcome);
  bool may_fit(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) const;
  bool is_pipeline(const Candidate& candidate) const;
  const Space& space(std::uint32_t setting) const;
  const Plan& plan_of(std::uint32_t setting) const;
  Plan plan_of(const Candidate& candidate) const;
  std::int32_t steps(const Candidate& candidate) const;
  Evaluator& evaluator(std::size_t worker, std::uint32_t setting) {
    return evaluators_[worker][settings_[setting].framework];
  }

  /// Sharpens what is known of candidates, in parallel, and appends what they open into.
  void look_at(const std::vector<std::uint32_t>& batch, bool sparing, Bytes limit);
  Outcome look(std::size_t worker, const Candidate& candidate, bool sparing, Bytes limit);
  void open(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome);
  void open_policies(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome);
  void follow(Evaluator& evaluator, const Candidate& candidate, Bytes limit, Outcome& outcome);
  /// Of a policy, the plan with the fewest steps, `step` or more, whose memory may fit and is at
  /// most `limit`; counts those before it.
  std::optional<Candidate> fewest(Evaluator& evaluator, Candidate of, std::int32_t step,
                                  Bytes limit, Outcome& outcome);
  void take(std::uint32_t index, Outcome outcome);
  void note(std::uint32_t setting, const Shortage& shortage);
  bool is_spare(const Candidate& candidate) const;

  // How many layers must be recomputed, where replays decide.
  bool is_settled(const Candidate& candidate) const;
  std::optional<std::int32_t> settled(std::uint32_t setting, std::int16_t policy);
  std::optional<std::int32_t> first_that_fits(const Candidate& of, std::int32_t begin,
                                              std::int32_t end);
  std::optional<std::int32_t> least_that_fits(const Candidate& of);
  void measure_shortages(const Wanted& wanted);
  std::vector<std::pair<Bytes, Candidate>> shortages_of(std::uint32_t setting);

  const Judgement* judged(const Candidate& candidate) const;
  /// Keeps a judgement of a plan; whether it fits.
  bool keep(const Candidate& candidate, Judgement judgement);
  void count_simulated(const Candidate& candidate);
  Found found(const Candidate& candidate) const;
  /// The best that was predicted so far; none where no plan is known to fit.
  std::optional<Found> best_so_far(const Wanted& wanted) const;
  void tell(const char* doing);

  const Model& model_;
  std::vector<FrameworkPlans> frameworks_;
  SearchOptions options_;
  SearchEnd end_;
  std::chrono::steady_clock::time_point begin_, told_;
  WorkerPool pool_;
  std::vector<std::vector<Evaluator>> evaluators_;  // by worker and framework
  std::vector<Setting> settings_;
  std::vector<Candidate> candidates_;  // all that ever were
  std::vector<Shortage> shortages_;    // by setting
  std::vector<Candidate> unmeasured_;  // do not fit, nobody knows by how much
  std::unordered_map<std::uint64_t, std::optional<Judgement>> judged_;  // by plan; none: misfits
  /// By setting and policy, the steps that memory requires; none where no plan is wanted.
  std::unordered_map<std::uint64_t, std::optional<std::int32_t>> settled_;
  std::unordered_set<std::uint64_t> simulated_;  // plans
  const Judgement* best_so_far_ = nullptr;
  Counts counts_;
  bool cut_short_ = false;
};

// The frameworks that a search goes through, and their plans of one request.

struct Framework {
  const profiles::Profile* profile = nullptr;  // of it on the cluster
  double headroom = 0;                         // Criteria::headroom of its plans
};

/// The plans of those frameworks that do what the request holds fixed. Throws Error as space_of()
/// does where there is none.
std::vector<FrameworkPlans> plans_of(const Request& request, const Model& model,
                                     const std::vector<Framework>& frameworks, bool robust);

/// The plans of one framework in scenarios of one's own.
FrameworkPlans plans_of(const Request& request, const Model& model,
                        const std::vector<Scenario>& scenarios, double headroom);

/// Whether a plan is that framework's.
Search::Wanted of_framework(const FrameworkPlans& framework);

/// Whether a plan is that framework's, and its ranks share data alone.
bool shares_data_alone(const Plan& plan, const Model& model, const FrameworkPlans& framework);

}  // namespace shardwright::tuner
