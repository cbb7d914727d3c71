// SPDX-License-Identifier: Apache-2.0
#include "tuner/contest.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/portable_math.h"
#include "tuner/divided_advice.h"
#include "tuner/divided_search.h"
#include "tuner/divided_steps.h"
#include "tuner/scenarios.h"
#include "tuner/software_choice.h"

namespace shardwright::tuner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<Scenario> scenarios_of(const profiles::Profile& profile, bool robust) {
  std::vector<Scenario> scenarios{as_predicted(profile)};
  if (!robust) return scenarios;
  for (Scenario& adverse : adverse_scenarios(profile)) scenarios.push_back(std::move(adverse));
  return scenarios;
}

/// The search over divided plans of one request.
class DividedTuner {
 public:
  DividedTuner(const Model& model, const profiles::Profile& profile, const Request& request,
               Extent extent, const TuneOptions& options)
      : begin_(Clock::now()),
        model_(model),
        options_(options),
        scenarios_(scenarios_of(profile, options.robust)),
        request_(software_of(request, extent)),
        space_(divided_space(request_, model, profile, extent)),
        search_(model, scenarios_, space_, options.search) {}

  std::optional<Found> best(std::optional<double> below) {
    std::vector<Found> found = search_.best(1, below);
    if (found.empty()) return std::nullopt;
    return std::move(found.front());
  }

  Tuning answer() {
    Tuning tuning;
    tuning.divided = true;
    tuning.profile = scenarios_.front().profile;
    tuning.strategies = space_.strategies;
    tuning.usual_global_batch = space_.usual_global_batch;
    tuning.top = search_.best(options_.top);
    tuning.counts = search_.counts();
    if (!tuning.top.empty() && !search_.stopped()) tuning.pareto = search_.pareto();
    tuning.search_s = seconds_since(begin_);
    if (!search_.stopped()) {
      if (tuning.top.empty()) {
        tuning.advice = advise(search_, model_, scenarios_, request_, options_.search);
      } else {
        tuning.steps =
            divided_steps(model_, scenarios_, request_, options_.search, tuning.top.front());
        std::vector<Plan> plans;
        for (const Found& found : tuning.top) plans.push_back(found.plan());
        tuning.robustness = robustness_of(model_, adverse_scenarios(*tuning.profile), space_,
                                          options_.search, plans);
      }
    }
    tuning.stopped = search_.stopped();
    if (tuning.stopped) tuning.robustness.reset();
    tuning.total_s = seconds_since(begin_);
    return tuning;
  }

 private:
  Request software_of(Request request, Extent extent) const {
    request.stack = scenarios_.front().profile.stack.id;
    if (!request.allow_software) return request;
    return with_best_software(model_, scenarios_, request, extent, options_.search);
  }

  Clock::time_point begin_;
  const Model& model_;
  TuneOptions options_;
  std::vector<Scenario> scenarios_;
  Request request_;
  DividedSpace space_;
  DividedSearch search_;
};

/// Data parallelism cannot give each GPU a sequence, which is no mistake of the request.
bool too_few_sequences(const Request& request) {
  return request.global_batch && *request.global_batch < request.gpus;
}

std::string too_few_words(const Request& request) {
  return fmt::format("{} sequences a step are less than one for each of {} GPUs",
                     *request.global_batch, request.gpus);
}

OtherSoftware other_of(const Tuning& plain, const profiles::Profile& profile) {
  OtherSoftware other;
  other.stack = profile.stack.id;
  if (!plain.top.empty()) other.best = plain.top.front();
  if (plain.top.empty() && plain.advice) other.closest = plain.advice->closest;
  return other;
}

}  // namespace

bool takes_over(const sim::Prediction& divided, double score, const sim::Prediction& plain,
                double plain_score, Objective objective) {
  if (objective == Objective::kHeadroom) return false;
  const auto half_width = [](const sim::TimePrediction& time) {
    const double whole = portable_log(time.interval_s[1] / time.iteration_s);
    const double shared = time.scale_half_width;
    return std::sqrt(std::max(0.0, whole * whole - shared * shared));
  };
  const double doubt = std::hypot(half_width(divided.time), half_width(plain.time));
  return portable_log(plain_score / score) > doubt;
}

Tuning compete(const Model& model, const Contestants& contestants, const Request& request,
               const TuneOptions& options) {
  const auto begin = Clock::now();
  OtherSoftware lost;
  lost.refusal = contestants.plain_refusal;
  std::optional<Tuning> plain;
  if (contestants.plain != nullptr) {
    lost.stack = contestants.plain->stack.id;
    if (contestants.divided != nullptr && too_few_sequences(request)) {
      lost.refusal = too_few_words(request);
    } else {
      plain = tune(model, *contestants.plain, request, options);
      lost = other_of(*plain, *contestants.plain);
    }
  }
  if (contestants.divided == nullptr || (plain && plain->stopped)) return *std::move(plain);
  const bool plain_answers = plain && !plain->top.empty();
  try {
    TuneOptions of_divided = options;
    of_divided.search.criteria.headroom = contestants.divided_headroom;
    const Extent extent = contestants.plain != nullptr ? Extent::kDivided : Extent::kAll;
    DividedTuner divided(model, *contestants.divided, request, extent, of_divided);
    if (plain_answers) {
      const double score = plain->top.front().score;
      std::optional<Found> best = divided.best(score);
      if (!best || !takes_over(best->prediction, best->score, plain->top.front().prediction, score,
                               options.search.criteria.objective)) {
        OtherSoftware other;
        other.stack = contestants.divided->stack.id;
        if (best) other.cost = best->score / score - 1;
        other.best = std::move(best);
        plain->other = std::move(other);
        plain->total_s = seconds_since(begin);
        return *std::move(plain);
      }
    }
    Tuning answer = divided.answer();
    if (answer.top.empty() && plain) return *std::move(plain);
    if (lost.best && !answer.top.empty())
      lost.cost = lost.best->score / answer.top.front().score - 1;
    if (contestants.plain != nullptr || !lost.refusal.empty()) answer.other = std::move(lost);
    answer.total_s = seconds_since(begin);
    return answer;
  } catch (const Error&) {
    if (!plain) throw;
  }
  return *std::move(plain);
}

}  // namespace shardwright::tuner
