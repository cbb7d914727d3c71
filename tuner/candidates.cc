// SPDX-License-Identifier: Apache-2.0
#include "tuner/candidates.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/portable_math.h"
#include "tuner/model_parallel_advice.h"
#include "tuner/model_parallel_search.h"
#include "tuner/model_parallel_steps.h"
#include "tuner/scenarios.h"
#include "tuner/software_choice.h"

namespace shardwright::tuner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The search over model-parallel plans of one request.
class ModelParallelTuner {
 public:
  ModelParallelTuner(const Model& model, const profiles::Profile& profile, const Request& request,
                     Extent extent, const TuneOptions& options)
      : begin_(Clock::now()),
        model_(model),
        options_(options),
        scenarios_(scenarios_of(profile, options.robust)),
        extent_(extent),
        request_(software_of(request, extent)),
        space_(model_parallel_space(request_, model, profile, extent)),
        search_(model, scenarios_, space_, options.search) {}

  std::optional<Found> best(std::optional<double> below) {
    std::vector<Found> found = search_.best(1, below);
    if (found.empty()) return std::nullopt;
    return std::move(found.front());
  }

  Tuning answer() {
    Tuning tuning;
    tuning.model_parallel = true;
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
        Found choice = tuning.top.front();
        tuning.steps = climb(choice, [&](const Found& found) {
          return model_parallel_steps(model_, scenarios_, request_, extent_, options_.search,
                                      found);
        });
        put_first(tuning.top, std::move(choice), different_layouts);
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
  Extent extent_;
  Request request_;
  ModelParallelSpace space_;
  ModelParallelSearch search_;
};

/// Data parallelism cannot give each GPU a sequence, which is no mistake of the request.
bool too_few_sequences(const Request& request) {
  return request.global_batch && *request.global_batch < request.gpus;
}

std::string too_few_words(const Request& request) {
  return fmt::format("{} sequences a step are less than one for each of {} GPUs",
                     *request.global_batch, request.gpus);
}

std::string names_of(const std::vector<ParallelCandidate>& candidates) {
  std::vector<std::string> names;
  for (const ParallelCandidate& candidate : candidates)
    names.push_back(candidate.profile->stack.id);
  return fmt::format("{}", fmt::join(names, " or "));
}

/// The searches of one question, each below the best score so far.
class BestOfAll {
 public:
  BestOfAll(const Model& model, const Candidates& candidates, const Request& request,
            const TuneOptions& options)
      : begin_(Clock::now()),
        model_(model),
        candidates_(candidates),
        request_(request),
        options_(options) {}

  Tuning answer() {
    search_data_parallel();
    if (!plain_ || !plain_->stopped()) search_parallel();
    Tuning answer = winner_ != nullptr ? winner_->answer() : without_parallel();
    if (winner_ != nullptr && has_loser()) {
      if (plain_) loser_.closest = plain_->closest();
      if (loser_.best && !answer.top.empty()) {
        const Found& best = answer.top.front();
        loser_.cost = loser_.best->score / best.score - 1;
        loser_.within_uncertainty =
            !is_better_beyond_uncertainty(best.prediction, best.score, loser_.best->prediction,
                                          loser_.best->score, options_.search.criteria.objective);
      }
      answer.other = std::move(loser_);
    }
    answer.native = native_plan(answer);
    answer.total_s = seconds_since(begin_);
    return answer;
  }

 private:
  std::optional<NativePlan> native_plan(const Tuning& answer) const {
    const profiles::Profile* profile = candidates_.native;
    if (profile == nullptr || answer.top.empty() || answer.stopped) return std::nullopt;
    const Found& best = answer.top.front();
    if (best.plan().stack == profile->stack.id || too_few_sequences(request_)) return std::nullopt;
    try {
      TuneOptions options = options_;
      options.top = 1;
      Request request = request_;
      request.stack = profile->stack.id;
      const DataParallelTuner tuner(model_, *profile, request, options);
      if (tuner.top().empty()) return std::nullopt;
      NativePlan native{tuner.top().front(), *profile, 0};
      native.cost = native.best.score / best.score - 1;
      const sim::TimePrediction& time = best.prediction.time;
      if (1 + native.cost > time.interval_s[1] / time.iteration_s) return std::nullopt;
      return native;
    } catch (const Error&) {  // the executor does not do what the request holds fixed
      return std::nullopt;
    }
  }

  void search_data_parallel() {
    loser_.refusal = candidates_.refusal;
    const profiles::Profile* profile = candidates_.data_parallel;
    if (profile == nullptr) return;
    loser_.stack = profile->stack.id;
    if (!candidates_.parallel.empty() && too_few_sequences(request_)) {
      loser_.refusal = too_few_words(request_);
      return;
    }
    plain_.emplace(model_, *profile, request_, options_);
    if (plain_->top().empty()) return;
    loser_.best = plain_->top().front();
    below_ = loser_.best->score;
  }

  void search_parallel() {
    for (const ParallelCandidate& candidate : candidates_.parallel) {
      try {
        TuneOptions options = options_;
        options.search.criteria.headroom = candidate.headroom;
        auto tuner = std::make_unique<ModelParallelTuner>(model_, *candidate.profile, request_,
                                                          candidate.extent, options);
        const std::optional<Found> best = tuner->best(below_);
        if (best && (!below_ || best->score < *below_)) {
          below_ = best->score;
          winner_ = std::move(tuner);
        } else if (!first_) {
          first_ = std::move(tuner);
        }
      } catch (const Error& error) {
        if (!error_) error_ = error;
      }
    }
  }

  /// No model-parallel plan is better, or there is none.
  Tuning without_parallel() {
    if (plain_) {
      Tuning answer = plain_->answer();
      if (!answer.top.empty() && !answer.stopped && !candidates_.parallel.empty()) {
        OtherFramework other;
        other.stack = names_of(candidates_.parallel);
        answer.other = std::move(other);
      }
      return answer;
    }
    if (!first_) throw *error_;
    Tuning answer = first_->answer();
    if (has_loser()) answer.other = std::move(loser_);
    return answer;
  }

  bool has_loser() const { return candidates_.data_parallel != nullptr || !loser_.refusal.empty(); }

  Clock::time_point begin_;
  const Model& model_;
  const Candidates& candidates_;
  const Request& request_;
  const TuneOptions& options_;
  std::optional<DataParallelTuner> plain_;
  std::unique_ptr<ModelParallelTuner> winner_, first_;  // first_: the first that is no better
  std::optional<double> below_;
  OtherFramework loser_;
  std::optional<Error> error_;
};

}  // namespace

bool is_better_beyond_uncertainty(const sim::Prediction& model_parallel, double score,
                                  const sim::Prediction& plain, double plain_score,
                                  Objective objective) {
  if (objective == Objective::kHeadroom) return false;
  const auto half_width = [](const sim::TimePrediction& time) {
    const double whole = portable_log(time.interval_s[1] / time.iteration_s);
    const double shared = time.scale_half_width;
    return std::sqrt(std::max(0.0, whole * whole - shared * shared));
  };
  const double uncertainty = std::hypot(half_width(model_parallel.time), half_width(plain.time));
  return portable_log(plain_score / score) > uncertainty;
}

Tuning tune_all(const Model& model, const Candidates& candidates, const Request& request,
                const TuneOptions& options) {
  return BestOfAll(model, candidates, request, options).answer();
}

}  // namespace shardwright::tuner
