// SPDX-License-Identifier: Apache-2.0
#include "tuner/model_parallel_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/core/error.h"
#include "sim/parallel/predict_parallel.h"

namespace shardwright::tuner {
namespace {

constexpr std::size_t kCandidatesPerRound = 16;
constexpr std::size_t kLayoutsPerRound = 4096;
constexpr std::size_t kLayoutsInARow = 64;  // by one thread: neighbours share bodies
constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

auto parallel_layout_of(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  return std::make_tuple(plan.strategy, p.tp, p.pp, p.cp, p.ep, p.etp, plan.reduce_dtype,
                         plan.master_dtype, plan.moment_dtype, plan.numerics.precision,
                         plan.numerics.optimizer);
}

}  // namespace

bool different_layouts(const Plan& a, const Plan& b) {
  return parallel_layout_of(a) != parallel_layout_of(b);
}

/// Judges plans in all scenarios; of one thread.
class ModelParallelSearch::Worker {
 public:
  Worker(const Model& model, const std::vector<Scenario>& scenarios, const Criteria& criteria)
      : model_(model), scenarios_(scenarios), criteria_(criteria) {
    for (const Scenario& scenario : scenarios) predictors_.emplace_back(model, scenario.profile);
  }

  /// Never above the score of this plan.
  double bound(const Plan& plan) {
    double worst = 0;
    if (criteria_.objective == Objective::kHeadroom) return static_cast<double>(total_bytes(plan));
    for (std::size_t s = 0; s < scenarios_.size(); ++s)
      worst = std::max(worst, score(s, plan, predictors_[s].least_s(plan), 0));
    return worst;
  }

  /// Beyond what may be used, in the worst scenario; negative: to spare.
  Bytes excess_bytes(const Plan& plan, Bytes total) const {
    Bytes worst = std::numeric_limits<Bytes>::min();
    for (const Scenario& scenario : scenarios_) {
      const Bytes used = scaled(total, scenario.memory_factor);
      worst = std::max(worst, used - allowed_bytes(scenario, plan.gpus));
    }
    return worst;
  }

  Bytes total_bytes(const Plan& plan) const {
    return sim::parallel_memory_bytes(model_, scenarios_.front().profile, plan);
  }
  /// The same, kept: a front asks for it with one limit after another.
  Bytes total_bytes(const Candidate& candidate, const Plan& plan) {
    const std::uint64_t key = (std::uint64_t{candidate.layout} << 32U) |
                              (static_cast<std::uint64_t>(candidate.recomputation + 1) << 16U) |
                              static_cast<std::uint64_t>(candidate.step);
    const auto [at, is_new] = total_bytes_.try_emplace(key, 0);
    if (is_new) at->second = total_bytes(plan);
    return at->second;
  }

  Judgement judge(const Plan& plan) {
    Judgement judgement;
    for (std::size_t s = 0; s < scenarios_.size(); ++s) {
      const Scenario& scenario = scenarios_[s];
      sim::Prediction p = predictors_[s].predict(plan);
      const Bytes total = scaled(p.memory.total_bytes, scenario.memory_factor);
      judgement.score = std::max(judgement.score, score(s, plan, p.time.iteration_s, total));
      if (s > 0) continue;
      judgement.excess_bytes = excess_bytes(plan, p.memory.total_bytes);
      judgement.fits = judgement.excess_bytes <= 0;
      judgement.prediction = std::move(p);
    }
    return judgement;
  }

 private:
  static Bytes scaled(Bytes bytes, double factor) {
    return factor == 1 ? bytes : static_cast<Bytes>(static_cast<double>(bytes) * factor) + 1;
  }
  Bytes allowed_bytes(const Scenario& scenario, std::int64_t ranks) const {
    const auto usable = static_cast<double>(scenario.profile.cluster.memory_bytes_per_rank(ranks));
    return static_cast<Bytes>(usable * (1 - criteria_.headroom));
  }
  double score(std::size_t s, const Plan& plan, double step_s, Bytes total) const {
    return score_of(criteria_.objective, plan, step_s, total,
                    scenarios_[s].profile.cluster.usd_per_gpu_hour);
  }

  const Model& model_;
  const std::vector<Scenario>& scenarios_;
  Criteria criteria_;
  std::vector<sim::Predictor> predictors_;
  std::unordered_map<std::uint64_t, Bytes> total_bytes_;
};

/// Candidates by key; of equal ones the smaller, then the plainer comes first.
class ModelParallelSearch::Queue {
 public:
  explicit Queue(std::vector<Candidate> candidates) : heap_(std::move(candidates)) {
    std::make_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  const Candidate& front() const { return heap_.front(); }
  Candidate pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate front = heap_.back();
    heap_.pop_back();
    return front;
  }
  void push(const Candidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

 private:
  static bool later(const Candidate& a, const Candidate& b) {
    return std::tie(a.key, a.total_bytes, a.layout, a.recomputation) >
           std::tie(b.key, b.total_bytes, b.layout, b.recomputation);
  }
  std::vector<Candidate> heap_;
};

ModelParallelSearch::ModelParallelSearch(const Model& model, const std::vector<Scenario>& scenarios,
                                         const ModelParallelSpace& space,
                                         const SearchOptions& options)
    : model_(model),
      scenarios_(scenarios),
      space_(space),
      options_(options),
      begin_(std::chrono::steady_clock::now()),
      told_(begin_),
      pool_(options.threads) {
  for (std::size_t i = 0; i < pool_.size(); ++i)
    workers_.push_back(std::make_unique<Worker>(model_, scenarios_, options_.criteria));
  counts_.considered = space_.size();
  bound_all();
}

ModelParallelSearch::~ModelParallelSearch() = default;

bool ModelParallelSearch::stopped() const {
  return cut_short_ || (options_.stop != nullptr && options_.stop->load());
}

void ModelParallelSearch::tell(const char* doing) {
  if (!options_.progress) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < std::chrono::milliseconds(50)) return;
  told_ = now;
  options_.progress(
      {doing, counts_.considered, std::chrono::duration<double>(now - begin_).count(), nullptr});
}

Plan ModelParallelSearch::plan_of(const Candidate& candidate) const {
  const ParallelLayout& layout = space_.layouts[candidate.layout];
  if (candidate.recomputation < 0) return space_.plan(layout);
  return space_.plan(layout,
                     space_.recomputations[static_cast<std::size_t>(candidate.recomputation)],
                     std::max<std::int64_t>(1, candidate.step));
}

/// Every division once: without recomputation, or where all plans recompute with none settled.
void ModelParallelSearch::bound_all() {
  start_.resize(space_.layouts.size());
  for (std::size_t first = 0; first < start_.size(); first += kLayoutsPerRound) {
    if (first > 0 && stopped()) {
      cut_short_ = true;
      start_.resize(first);
      return;
    }
    const std::size_t count = std::min(kLayoutsPerRound, start_.size() - first);
    pool_.run(
        count,
        [&](std::size_t worker, std::size_t i) {
          Candidate& candidate = start_[first + i];
          candidate.layout = static_cast<std::uint32_t>(first + i);
          // Recomputation takes more time, but less memory: nothing is known of that yet.
          if (options_.criteria.objective == Objective::kHeadroom) return;
          candidate.key = workers_[worker]->bound(space_.plan(space_.layouts[candidate.layout]));
        },
        kLayoutsInARow);
    tell("bounding");
  }
}

/// The fewest layers of each policy that fit, each a candidate of its own.
void ModelParallelSearch::settle(Worker& worker, const Candidate& candidate, Bytes limit,
                                 Outcome& outcome) const {
  const ParallelLayout& layout = space_.layouts[candidate.layout];
  for (std::size_t r = 0; r < space_.recomputations.size(); ++r) {
    const auto plan_at = [&](std::int64_t step) {
      return space_.plan(layout, space_.recomputations[r], step);
    };
    const auto fits = [&](std::int64_t step, Bytes& total) {
      const Plan plan = plan_at(step);
      Candidate asked = candidate;
      asked.recomputation = static_cast<std::int16_t>(r);
      asked.step = static_cast<std::int16_t>(step);
      total = worker.total_bytes(asked, plan);
      const Bytes excess = worker.excess_bytes(plan, total);
      return excess <= 0 && total <= limit;
    };
    std::int64_t most = space_.steps(layout, space_.recomputations[r]);
    Bytes total = 0;
    if (!fits(most, total)) {
      const Plan plan = plan_at(most);
      const Bytes excess = worker.excess_bytes(plan, total);
      outcome.misfits += most;
      if (!outcome.overshoot || excess < outcome.overshoot->excess_bytes)
        outcome.overshoot = Overshoot{plan, excess};
      continue;
    }
    const bool as_few = options_.criteria.objective != Objective::kHeadroom;
    std::int64_t least = as_few ? 1 : most;
    while (least < most) {
      const std::int64_t middle = (least + most) / 2;
      Bytes of_middle = 0;
      if (fits(middle, of_middle)) {
        most = middle;
        total = of_middle;
      } else {
        least = middle + 1;
      }
    }
    if (as_few) outcome.misfits += most - 1;
    Candidate settled = candidate;
    settled.recomputation = static_cast<std::int16_t>(r);
    settled.step = static_cast<std::int16_t>(most);
    settled.total_bytes = total;
    settled.stage = Stage::kFits;
    settled.key = std::max(candidate.key, worker.bound(plan_at(most)));
    outcome.next.push_back(settled);
  }
}

ModelParallelSearch::Outcome ModelParallelSearch::look(Worker& worker, const Candidate& candidate,
                                                       Bytes limit) const {
  Outcome outcome;
  if (candidate.stage == Stage::kFits) {
    outcome.judgement = worker.judge(plan_of(candidate));
    return outcome;
  }
  if (space_.recomputes_nothing) {
    const Plan plan = plan_of(candidate);
    const Bytes total = worker.total_bytes(candidate, plan);
    const Bytes excess = worker.excess_bytes(plan, total);
    if (excess <= 0 && total <= limit) {
      Candidate fitting = candidate;
      fitting.key = std::max(candidate.key, worker.bound(plan));
      fitting.total_bytes = total;
      fitting.stage = Stage::kFits;
      outcome.next.push_back(fitting);
      // The least memory may well be with recomputation.
      if (options_.criteria.objective != Objective::kHeadroom) return outcome;
    } else {
      ++outcome.misfits;
      if (space_.recomputations.empty()) outcome.overshoot = Overshoot{plan, excess};
    }
  }
  settle(worker, candidate, limit, outcome);
  return outcome;
}

std::vector<Found> ModelParallelSearch::run(std::size_t count, std::optional<double> below,
                                            Bytes limit, bool counts) {
  std::vector<Found> answers;
  std::set<decltype(parallel_layout_of(Plan{}))> reported;
  Queue queue(start_);
  while (answers.size() < count && !queue.empty() && (!below || queue.front().key < *below)) {
    if (stopped() && !answers.empty()) {
      cut_short_ = true;
      break;
    }
    if (queue.front().stage == Stage::kJudged) {
      const Candidate best = queue.pop();
      const Judgement& judgement = judgements_[best.judged];
      if (reported.insert(parallel_layout_of(judgement.prediction.plan)).second)
        answers.push_back({judgement.prediction, judgement.score, best.layout});
      continue;
    }
    std::vector<Candidate> batch;
    while (batch.size() < kCandidatesPerRound && !queue.empty() &&
           queue.front().stage != Stage::kJudged && (!below || queue.front().key < *below)) {
      const Candidate front = queue.pop();
      if (!reported.contains(parallel_layout_of(plan_of(front)))) batch.push_back(front);
    }
    std::vector<Outcome> outcomes(batch.size());
    pool_.run(batch.size(), [&](std::size_t worker, std::size_t i) {
      outcomes[i] = look(*workers_[worker], batch[i], limit);
    });
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Outcome& outcome = outcomes[i];
      if (counts) counts_.no_memory += outcome.misfits;
      if (outcome.overshoot &&
          (!nearest_ || outcome.overshoot->excess_bytes < nearest_->excess_bytes)) {
        nearest_ = std::move(outcome.overshoot);
      }
      for (const Candidate& next : outcome.next) queue.push(next);
      if (!outcome.judgement) continue;
      ++counts_.simulated;
      ++counts_.predicted;
      if (!outcome.judgement->fits) {
        ++counts_.no_reserve;
        continue;
      }
      Candidate judged = batch[i];
      judged.stage = Stage::kJudged;
      judged.key = std::max(judged.key, outcome.judgement->score);
      judged.judged = static_cast<std::uint32_t>(judgements_.size());
      judgements_.push_back(*std::move(outcome.judgement));
      queue.push(judged);
    }
    tell("simulating");
  }
  return answers;
}

std::vector<Found> ModelParallelSearch::best(std::size_t count, std::optional<double> below) {
  counts_ = Counts{};
  counts_.considered = space_.size();
  return run(count, below, kNoLimit, true);
}

std::vector<Found> ModelParallelSearch::pareto(std::size_t most, double step) {
  std::vector<Found> front;
  Bytes limit = kNoLimit;
  while (front.size() < most && !stopped()) {
    std::vector<Found> best = run(1, std::nullopt, limit, false);
    if (best.empty()) break;
    front.push_back(std::move(best.front()));
    const auto used = static_cast<double>(front.back().prediction.memory.total_bytes);
    limit = static_cast<Bytes>(used * (1 - step));
  }
  return front;
}

std::vector<Judgement> ModelParallelSearch::judge(const std::vector<Plan>& plans) {
  std::vector<Judgement> judgements(plans.size());
  pool_.run(plans.size(), [&](std::size_t worker, std::size_t i) {
    judgements[i] = workers_[worker]->judge(plans[i]);
  });
  return judgements;
}

}  // namespace shardwright::tuner
