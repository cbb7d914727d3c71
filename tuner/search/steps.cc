// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/units.h"
#include "tuner/search/frameworks.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

std::vector<KnobStep> steps_of(Search& search, const Model& model, const Request& request,
                               const SearchOptions& options, const Found& choice) {
  const FrameworkPlans& framework = search.frameworks()[choice.framework];
  if (shares_data_alone(choice.plan(), model, framework))
    return knob_steps(search, model, request, choice);
  return size_steps(framework, model, request, options, choice);
}

namespace {

constexpr int kMostMoves = 16;

/// The best of the steps that nothing holds fixed, beyond the values that the search tries, and
/// worth moving for; null where there is none.
const KnobStep* best_outside(const std::vector<KnobStep>& steps) {
  const KnobStep* best = nullptr;
  for (const KnobStep& step : steps) {
    const bool gains = step.judgement.fits && step.cost < -kWorthMoving;
    if (gains && step.freedom == Freedom::kOutside && (best == nullptr || step.cost < best->cost))
      best = &step;
  }
  return best;
}

}  // namespace

std::vector<KnobStep> climb(Found& choice,
                            const std::function<std::vector<KnobStep>(const Found&)>& steps_of) {
  for (int moves = 0;; ++moves) {
    std::vector<KnobStep> steps = steps_of(choice);
    const KnobStep* best = best_outside(steps);
    if (best == nullptr || moves == kMostMoves) return steps;
    choice = {best->judgement.prediction, best->judgement.score, choice.framework};
  }
}

void put_first(std::vector<Found>& top, Found choice) {
  if (different(choice.plan(), top.front().plan())) {
    top.insert(top.begin(), std::move(choice));
  } else {
    top.front() = std::move(choice);
  }
}

namespace {

/// A step that has still to be judged. Of steps of one `rank`, only the best is shown.
struct Trial {
  std::string knob, from, to;
  Freedom freedom;
  Plan plan;
  int rank;
};

class Trials {
 public:
  Trials(const Request& request, const Space& space, const Model& model,
         const profiles::Profile& profile, const Plan& choice)
      : request_(request), space_(space), model_(model), profile_(profile), choice_(choice) {}

  std::vector<Trial> all() {
    layers();
    recompute();
    batch();
    shard_group();
    if (uses_buffers(choice_.strategy, profile_.stack)) gathers();
    attention();
    loss_chunks();
    dtype("reduce-dtype", request_.reduce_dtype, request_.allow_bf16_reduce, &Plan::reduce_dtype);
    dtype("master-dtype", request_.master_dtype, request_.allow_bf16_master, &Plan::master_dtype);
    dtype("moment-dtype", request_.moment_dtype, request_.allow_bf16_moments, &Plan::moment_dtype);
    return std::move(trials_);
  }

 private:
  void add(std::string knob, std::string from, std::string to, Freedom freedom, Plan plan,
           bool among_last = false) {
    try {
      check_plan(plan, model_, profile_.cluster.gpus_per_node);
    } catch (const InvalidPlan&) {
      return;
    }
    if (!among_last || rank_ < 0) ++rank_;
    trials_.push_back(
        {std::move(knob), std::move(from), std::move(to), freedom, std::move(plan), rank_});
  }

  /// Whether plans whose ranks share the same were searched with this value.
  template <typename Number>
  Freedom tried(Number Plan::*knob, Number value) const {
    const bool is_tried = std::any_of(
        space_.plans.begin(), space_.plans.end(),
        [&](const Plan& plan) { return plan.*knob == value && plan.parallel == choice_.parallel; });
    return is_tried ? Freedom::kSearched : Freedom::kOutside;
  }

  template <typename Number>
  void number(const char* knob, Freedom freedom, Number from, Number to, Number Plan::*member) {
    Plan plan = choice_;
    plan.*member = to;
    add(knob, fmt::format("{}", from), fmt::format("{}", to), freedom, std::move(plan));
  }

  /// Buffers are filled as far ahead as they reach, unless the request says how far.
  void gathers() {
    for (const int count : {choice_.buffers - 1, choice_.buffers + 1}) {
      if (count < 2) continue;
      Plan plan = choice_;
      plan.buffers = count;
      if (space_.fills_buffers) plan.prefetch = count - 1;
      add("buffers", fmt::format("{}", choice_.buffers), fmt::format("{}", count),
          request_.buffers ? Freedom::kFixed : tried(&Plan::buffers, count), plan);
    }
    const Freedom ahead = request_.prefetch ? Freedom::kFixed : Freedom::kOutside;
    if (choice_.prefetch > 0)
      number("prefetch", ahead, choice_.prefetch, choice_.prefetch - 1, &Plan::prefetch);
    if (choice_.prefetch < choice_.buffers - 1)
      number("prefetch", ahead, choice_.prefetch, choice_.prefetch + 1, &Plan::prefetch);
  }

  void layers() {
    const std::int64_t now = choice_.ckpt_layers;
    const bool fixed = request_.ckpt_layers.has_value() ||
                       (request_.recompute && request_.recompute->recompute == Recompute::kNone);
    const Freedom freedom = fixed ? Freedom::kFixed : Freedom::kSearched;
    const auto step = [&](Plan plan, std::int64_t count, bool among_last) {
      plan.ckpt_layers = count;
      if (count == 0) {
        plan.recompute = Recompute::kNone;
        plan.pieces = 0;
      }
      const std::string to = count == 0 ? "0" : fmt::format("{} ({})", count, recompute_name(plan));
      add("ckpt-layers", fmt::format("{}", now), to, freedom, plan, among_last);
    };
    if (now > 0) {
      step(choice_, now - 1, false);
      step(choice_, now + 1, false);
      return;
    }
    bool among_last = false;
    for (const Recomputation& recomputation : space_.recomputations) {
      Plan plan = choice_;
      plan.recompute = recomputation.recompute;
      plan.pieces = recomputation.pieces;
      step(plan, 1, among_last);
      among_last = true;
    }
    if (space_.recomputations.empty()) {
      Plan plan = choice_;
      plan.recompute = Recompute::kFull;
      step(plan, 1, false);
    }
  }

  void recompute() {
    if (choice_.ckpt_layers == 0) return;
    bool among_last = false;
    for (const Recomputation& other : recomputations_of(model_, space_.base, profile_.stack)) {
      if (other.recompute == choice_.recompute && other.pieces == choice_.pieces) continue;
      Plan plan = choice_;
      plan.recompute = other.recompute;
      plan.pieces = other.pieces;
      add("recompute", recompute_name(choice_), recompute_name(plan),
          request_.recompute ? Freedom::kFixed : Freedom::kSearched, plan, among_last);
      among_last = true;
    }
  }

  /// The next divisors of a GPU's sequences; where no batch is asked for, the next sizes.
  void batch() {
    const auto micro = [&](std::int64_t size) {
      return request_.micro_batch ? Freedom::kFixed : tried(&Plan::micro_batch, size);
    };
    const std::int64_t now = choice_.micro_batch;
    const std::int64_t own = now * choice_.grad_accum;
    const auto step = [&](const char* knob, Freedom freedom, std::int64_t micro_batch,
                          std::int64_t grad_accum) {
      Plan plan = choice_;
      plan.micro_batch = micro_batch;
      plan.grad_accum = grad_accum;
      add(knob, fmt::format("{} x {}", now, choice_.grad_accum),
          fmt::format("{} x {}", micro_batch, grad_accum), freedom, plan);
    };
    if (!request_.global_batch) {
      if (now > 1) step("micro-batch", micro(now - 1), now - 1, choice_.grad_accum);
      step("micro-batch", micro(now + 1), now + 1, choice_.grad_accum);
      step("grad-accum", Freedom::kFixed, now, choice_.grad_accum + 1);
      return;
    }
    for (std::int64_t smaller = now - 1; smaller >= 1; --smaller) {
      if (own % smaller != 0) continue;
      step("micro-batch", micro(smaller), smaller, own / smaller);
      break;
    }
    for (std::int64_t larger = now + 1; larger <= own; ++larger) {
      if (own % larger != 0) continue;
      step("micro-batch", micro(larger), larger, own / larger);
      break;
    }
  }

  void shard_group() {
    if (!info_of(choice_.strategy).hybrid) return;
    const std::int64_t now = resolved_shard_group(choice_, profile_.cluster.gpus_per_node);
    const Freedom freedom = request_.shard_group ? Freedom::kFixed : Freedom::kSearched;
    if (now % 2 == 0 && now > 2) number("shard-group", freedom, now, now / 2, &Plan::shard_group);
    if (2 * now < choice_.gpus) number("shard-group", freedom, now, 2 * now, &Plan::shard_group);
  }

  void attention() {
    if (profile_.stack.memory == MemoryManager::kStatic) return;  // there is only one
    Plan plan = choice_;
    plan.attention =
        choice_.attention == AttentionKind::kFlash ? AttentionKind::kEager : AttentionKind::kFlash;
    add("attention", std::string(name_of(choice_.attention)), std::string(name_of(plan.attention)),
        request_.attention ? Freedom::kFixed : Freedom::kSearched, plan);
  }

  void loss_chunks() {
    if (profile_.stack.memory == MemoryManager::kStatic) return;  // always in chunks
    Plan plan = choice_;
    plan.loss_chunks = choice_.loss_chunks > 1 ? 1 : kLossChunks;
    const auto words = [](const Plan& p) {
      return p.loss_chunks > 1 ? fmt::format("{}", p.loss_chunks) : std::string("1");
    };
    const Freedom freedom = request_.loss_chunks    ? Freedom::kFixed
                            : plan.loss_chunks == 1 ? tried(&Plan::loss_chunks, std::int64_t{0})
                                                    : tried(&Plan::loss_chunks, plan.loss_chunks);
    add("loss-chunks", words(choice_), words(plan), freedom, plan);
  }

  void dtype(const char* knob, std::optional<DType> fixed, bool allowed, DType Plan::*member) {
    if (choice_.gpus == 1 && member == &Plan::reduce_dtype) return;
    Plan plan = choice_;
    plan.*member = choice_.*member == DType::kFp32 ? DType::kBf16 : DType::kFp32;
    const Freedom freedom = fixed     ? Freedom::kFixed
                            : allowed ? Freedom::kSearched
                                      : Freedom::kNotAllowed;
    add(knob, std::string(name_of(choice_.*member)), std::string(name_of(plan.*member)), freedom,
        plan);
  }

  const Request& request_;
  const Space& space_;
  const Model& model_;
  const profiles::Profile& profile_;
  const Plan& choice_;
  std::vector<Trial> trials_;
  int rank_ = -1;
};

}  // namespace

std::vector<KnobStep> knob_steps(Search& search, const Model& model, const Request& request,
                                 const Found& choice) {
  const FrameworkPlans& framework = search.frameworks()[choice.framework];
  const profiles::Profile& profile = framework.scenarios.front().profile;
  std::vector<Trial> trials = Trials(request, framework.space, model, profile, choice.plan()).all();
  std::vector<Plan> plans;
  for (const Trial& trial : trials) plans.push_back(trial.plan);
  std::vector<Judgement> judgements = search.judge(plans, choice.framework);

  const auto better = [](const Judgement& a, const Judgement& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits ? a.score < b.score : a.excess_bytes < b.excess_bytes;
  };
  std::vector<KnobStep> steps;
  int last_rank = -1;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    const bool same = trials[i].rank == last_rank;
    last_rank = trials[i].rank;
    if (same && !better(judgements[i], steps.back().judgement)) continue;
    if (!same) steps.emplace_back();
    const double cost = judgements[i].score / choice.score - 1;
    steps.back() = {std::move(trials[i].knob), std::move(trials[i].from), std::move(trials[i].to),
                    trials[i].freedom,         std::move(judgements[i]),  cost};
  }
  return steps;
}

}  // namespace shardwright::tuner
