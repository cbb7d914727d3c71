// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/size_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/error.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/units.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/frameworks.h"
#include "tuner/search/steps.h"

namespace shardwright::tuner {

namespace {

constexpr double kNearlyAll = 0.95;  // of the largest batch that replicas share
constexpr double kCapStep = 1.35;    // from one cap to the next
constexpr double kPlenty = 8;  // sequences a GPU, of which a larger batch makes nothing faster

/// Sequences of a GPU that make whole micro-batches of several sizes.
std::int64_t whole_share(std::int64_t each) {
  if (each >= 8) return each - each % 4;
  return each >= 3 ? each - each % 2 : each;
}

}  // namespace

std::vector<std::int64_t> plain_batches(double cap, std::int64_t unit) {
  const auto each = static_cast<std::int64_t>(cap) / unit;
  if (each == 0) return {unit};
  std::vector<std::int64_t> batches{whole_share(each) * unit};
  if (static_cast<double>(each) < kPlenty) batches.push_back((each + 1) * unit);
  return batches;
}

std::vector<std::int64_t> shared_batches(double cap, std::int64_t gpus, std::int64_t most_ranks) {
  std::vector<std::int64_t> batches;
  std::int64_t fewest = gpus;  // replicas
  for (std::int64_t ranks = 1; ranks <= std::min(most_ranks, gpus); ++ranks) {
    if (gpus % ranks != 0) continue;
    const std::int64_t replicas = fewest = gpus / ranks;
    const std::int64_t most = static_cast<std::int64_t>(cap) / replicas * replicas;
    if (most == 0) continue;
    const bool served = std::any_of(batches.begin(), batches.end(), [&](std::int64_t batch) {
      return batch % replicas == 0 &&
             static_cast<double>(batch) >= kNearlyAll * static_cast<double>(most);
    });
    if (!served) batches.push_back(most);
  }
  if (batches.empty()) batches.push_back(fewest);
  std::sort(batches.rbegin(), batches.rend());
  return batches;
}

std::string batch_contradiction(const Request& fixed, std::int64_t gpus) {
  if (!fixed.global_batch || *fixed.global_batch % gpus == 0) return {};
  if (*fixed.global_batch < gpus) {
    return fmt::format("a global batch of {} sequences is too small for {} GPUs",
                       *fixed.global_batch, gpus);
  }
  const std::int64_t below = *fixed.global_batch / gpus * gpus;
  return fmt::format("a global batch of {} sequences is no multiple of {} GPUs, {} or {} would be",
                     *fixed.global_batch, gpus, below, below + gpus);
}

double uncounted_tokens(const RunConditions& conditions) {
  return std::max(kUsualOverhead * conditions.critical_tokens, conditions.own_published_tokens);
}

std::vector<double> batch_caps(const SizingJob& job, std::int64_t gpus) {
  const auto length = static_cast<double>(job.fixed.seq_len);
  // Powers of two of GPUs share the usual batch, a power of two of sequences.
  const bool even = is_power_of_two(gpus);
  const double usual =
      std::max(1.0, (even ? job.run.usual_tokens : uncounted_tokens(job.run)) / length);
  const double largest = job.run.published_tokens / length;
  if (usual >= kPlenty * static_cast<double>(gpus) || largest <= usual) return {usual};
  std::vector<double> caps;
  for (double cap = usual; cap * kCapStep <= largest; cap *= kCapStep) caps.push_back(cap);
  caps.push_back(largest);
  return caps;
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
