// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "profiles/ledger/software_settings.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/worker_pool.h"
#include "tuner/search/frameworks.h"
#include "tuner/search/steps.h"

namespace shardwright::tuner {
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
