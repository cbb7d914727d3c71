// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/error.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/units.h"
#include "tuner/search/search.h"
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

namespace {

struct Size {
  const char* knob;
  std::int64_t Parallelism::*member;
  std::optional<std::int64_t> GivenParallelism::*given;
  bool of_layout;  // ranks share it: held in the neighbours of the others
};
constexpr std::array<Size, 6> kSizes = {{
    {"tp", &Parallelism::tp, &GivenParallelism::tp, true},
    {"pp", &Parallelism::pp, &GivenParallelism::pp, true},
    {"virtual-stages", &Parallelism::virtual_stages, &GivenParallelism::virtual_stages, false},
    {"cp", &Parallelism::cp, &GivenParallelism::cp, true},
    {"ep", &Parallelism::ep, &GivenParallelism::ep, true},
    {"etp", &Parallelism::etp, &GivenParallelism::etp, true},
}};

struct Neighbour {
  std::string knob, from, to;
  Freedom freedom = Freedom::kSearched;
  Request request;  // that holds it
};

/// The layout of `plan`, its strategy, its settings and its arithmetic; chunks, micro-batch and
/// recomputation as the request has them.
Request holding(Request request, const Plan& plan) {
  for (const Size& size : kSizes) {
    if (size.of_layout) request.parallel.*size.given = plan.parallel.*size.member;
  }
  // The batch of the choice, also where nobody gave one.
  request.global_batch = plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum;
  if (request.micro_batch) request.grad_accum.reset();
  request.strategies = {plan.strategy};
  request.reduce_dtype = plan.reduce_dtype;
  request.moment_dtype = plan.moment_dtype;
  request.parallel.precision = plan.numerics.precision;
  request.parallel.optimizer = plan.numerics.optimizer;
  request.parallel.tp_overlap = plan.parallel.tp_overlap;
  request.parallel.dispatcher = plan.parallel.dispatcher;
  request.parallel.ep_overlap = plan.parallel.ep_overlap;
  request.parallel.pp_schedule = plan.parallel.pp_schedule;
  request.allow_software = false;
  request.stack = plan.stack;
  return request;
}

std::string_view setting_name(bool on) {
  return on ? "on" : "off";
}
std::string_view setting_name(auto setting) {
  return name_of(setting);
}

/// Settings of the software other than the plan's, which the search leaves as the stack has them.
template <typename Enum>
void add_settings(const char* knob, const std::vector<Enum>& settings, Enum now,
                  std::optional<Enum> GivenParallelism::*given, const Request& request,
                  const Request& held, std::vector<Neighbour>& neighbours) {
  for (const Enum setting : settings) {
    if (setting == now) continue;
    Request changed = held;
    changed.parallel.*given = setting;
    const bool fixed = (request.parallel.*given).has_value();
    const Freedom freedom = fixed                    ? Freedom::kFixed
                            : request.allow_software ? Freedom::kSearched
                                                     : Freedom::kSetting;
    neighbours.push_back({knob, std::string(setting_name(now)), std::string(setting_name(setting)),
                          freedom, std::move(changed)});
  }
}

void add_software(const Request& request, const Request& held, const Model& model, const Plan& plan,
                  const Stack& stack, std::vector<Neighbour>& neighbours) {
  const profiles::SoftwareSettings& settings = profiles::software_settings(stack);
  const Parallelism& p = plan.parallel;
  // Schedules go with chunks of their own, and all-to-alls hide beside some of them only.
  Request chunks = held;
  if (!request.parallel.pp_schedule) chunks.parallel.virtual_stages.reset();
  if (p.sequence_parallel()) {
    add_settings(
        "tp-overlap", settings.tensor_overlaps,
        p.tp_overlap.value_or(profiles::usual_overlap(stack, model, plan.numerics.precision)),
        &GivenParallelism::tp_overlap, request, held, neighbours);
  }
  if (p.ep > 1) {
    add_settings("dispatcher", settings.dispatchers,
                 p.dispatcher.value_or(profiles::usual_dispatcher(stack)),
                 &GivenParallelism::dispatcher, request, held, neighbours);
    add_settings("ep-overlap", settings.expert_overlaps, p.ep_overlap.value_or(false),
                 &GivenParallelism::ep_overlap, request, chunks, neighbours);
  }
  if (p.pp > 1) {
    add_settings("pp-schedule", settings.schedules, p.schedule(), &GivenParallelism::pp_schedule,
                 request, chunks, neighbours);
  }
}

/// Of a strategy that is held fixed and that the search tries without a pipeline only.
bool is_unasked_pipeline(const Size& size, std::int64_t to, const Request& request,
                         const Plan& plan) {
  return size.given == &GivenParallelism::pp && to > 1 && !request.parallel.pp &&
         !request.strategies.empty() && info_of(plan.strategy).reshards;
}

std::vector<Neighbour> neighbours_of(const Request& request, const Model& model, const Plan& plan,
                                     const Stack& stack) {
  std::vector<Neighbour> neighbours;
  const Request held = holding(request, plan);
  const auto add = [&](const char* knob, std::int64_t from, std::int64_t to, bool fixed,
                       Request changed) {
    neighbours.push_back({knob, fmt::format("{}", from), fmt::format("{}", to),
                          fixed ? Freedom::kFixed : Freedom::kSearched, std::move(changed)});
  };
  for (const Size& size : kSizes) {
    if (!size.of_layout && plan.parallel.pp == 1) continue;
    const std::int64_t now = plan.parallel.*size.member;
    for (const std::int64_t to : {now / 2, 2 * now}) {
      if (to < 1 || is_unasked_pipeline(size, to, request, plan)) continue;
      Request changed = held;
      changed.parallel.*size.given = to;
      bool fixed = (request.parallel.*size.given).has_value();
      if (size.given == &GivenParallelism::pp) changed.strategies = request.strategies;
      if (to == 1 && size.given == &GivenParallelism::pp) {
        fixed = fixed || request.parallel.virtual_stages;
        changed.parallel.virtual_stages.reset();
      }
      add(size.knob, now, to, fixed, std::move(changed));
    }
  }
  const std::int64_t now = plan.micro_batch;
  for (const std::int64_t to : {now / 2, 2 * now}) {
    if (to < 1) continue;
    Request changed = held;
    changed.micro_batch = to;
    changed.grad_accum.reset();
    add("micro-batch", now, to, request.micro_batch.has_value(), std::move(changed));
  }
  if (plan.numerics.precision == Precision::kBf16) {
    Request changed = held;
    changed.parallel.precision = Precision::kFp8;
    const Freedom freedom = request.parallel.precision           ? Freedom::kFixed
                            : request.allowed_precisions.empty() ? Freedom::kNotAllowed
                                                                 : Freedom::kSearched;
    neighbours.push_back({"precision", "bf16", "fp8", freedom, std::move(changed)});
  }
  add_software(request, held, model, plan, stack, neighbours);
  return neighbours;
}

/// The best plan of a neighbour; where none fits the one that comes closest. Nothing where there is
/// no such neighbour.
std::optional<Judgement> judged(const FrameworkPlans& framework, const Model& model,
                                const Request& request, const SearchOptions& options) {
  try {
    Search search(model, {plans_of(request, model, framework.scenarios, framework.headroom)},
                  options);
    std::vector<Found> best = search.best(1);
    if (best.empty()) {
      const std::optional<Overshoot> nearest = search.nearest();
      if (!nearest) return std::nullopt;
      return search.judge({nearest->plan}).front();
    }
    Judgement judgement;
    judgement.score = best.front().score;
    judgement.prediction = std::move(best.front().prediction);
    return judgement;
  } catch (const InvalidPlan&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<KnobStep> size_steps(const FrameworkPlans& framework, const Model& model,
                                 const Request& request, const SearchOptions& options,
                                 const Found& choice) {
  std::vector<Neighbour> neighbours =
      neighbours_of(request, model, choice.plan(), framework.scenarios.front().profile.stack);
  std::vector<std::optional<Judgement>> judgements(neighbours.size());
  SearchOptions quietly = options;
  quietly.progress = nullptr;
  quietly.threads = 1;
  for_each_index(neighbours.size(), static_cast<unsigned>(options.threads), [&](std::size_t i) {
    judgements[i] = judged(framework, model, neighbours[i].request, quietly);
  });
  std::vector<KnobStep> steps;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    if (!judgements[i]) continue;
    KnobStep& step = steps.emplace_back();
    step.knob = std::move(neighbours[i].knob);
    step.from = std::move(neighbours[i].from);
    step.to = std::move(neighbours[i].to);
    step.freedom = neighbours[i].freedom;
    step.judgement = *std::move(judgements[i]);
    step.cost = step.judgement.score / choice.score - 1;
    // What the search tries is no better than the choice.
    const bool gains = step.judgement.fits && step.judgement.score < choice.score * (1 - 1e-9);
    if (gains && step.freedom == Freedom::kSearched) step.freedom = Freedom::kOutside;
  }
  return steps;
}

}  // namespace shardwright::tuner
