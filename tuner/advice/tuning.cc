// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/tuning.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "tuner/search/search.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Tuner {
 public:
  Tuner(const Model& model, const Frameworks& frameworks, const Request& request,
        const TuneOptions& options)
      : begin_(Clock::now()),
        model_(model),
        frameworks_(frameworks),
        request_(request),
        options_(options),
        search_(model, plans_of(request, model, frameworks.searched, options.robust),
                options.search) {}

  Tuning answer() {
    Tuning tuning;
    std::vector<Found> best = search_.best(1);
    const std::size_t winner = best.empty() ? 0 : best.front().framework;
    const FrameworkPlans& own = search_.frameworks()[winner];
    tuning.profile = own.scenarios.front().profile;
    tuning.strategies = own.space.strategies;
    if (best.empty()) {
      tuning.model_parallel = own.space.always_shares_batch;
      if (tuning.model_parallel) tuning.usual_global_batch = own.space.usual_global_batch;
    } else {
      const Plan& plan = best.front().plan();
      tuning.model_parallel = !shares_data_alone(plan, model_, own);
      if (own.space.assumes_batch(plan)) tuning.usual_global_batch = own.space.usual_global_batch;
      tuning.top = std::move(best);
      until_ended([&] { explain(own, tuning); });
    }
    tuning.counts = search_.counts();
    tuning.search_s = tuning.search_s > 0 ? tuning.search_s : seconds_since(begin_);
    const bool none_fits = tuning.top.empty() && !search_.stopped();
    if (none_fits) {
      until_ended([&] {
        tuning.advice = advise(search_, model_, frameworks_.searched, request_, options_.search,
                               options_.robust);
      });
    }
    until_ended([&] { compare(tuning); });
    tuning.stopped = search_.stopped() && !(none_fits && tuning.advice);
    if (tuning.stopped) {  // what was cut short does not mean what it says
      tuning.others.clear();
      tuning.robustness.reset();
    }
    tuning.total_s = seconds_since(begin_);
    return tuning;
  }

 private:
  template <typename Part>
  static void until_ended(const Part& part) {
    try {
      part();
    } catch (const SearchEnded&) {  // without it
    }
  }

  /// What stands beside the best plan, which is the only one of tuning.top.
  void explain(const FrameworkPlans& own, Tuning& tuning) {
    const Search::Wanted wanted = of_framework(own);
    if (!search_.stopped() && options_.top > 1) {
      Found first = std::move(tuning.top.front());
      tuning.top = search_.best(options_.top, wanted);
      if (tuning.top.empty()) tuning.top.push_back(std::move(first));
    }
    if (search_.stopped()) return;
    Found choice = tuning.top.front();
    tuning.steps = climb(choice, [&](const Found& found) {
      return steps_of(search_, model_, request_, options_.search, found);
    });
    const std::size_t choice_framework = choice.framework;
    put_first(tuning.top, std::move(choice));
    if (options_.top > 1) {
      if (!tuning.model_parallel)
        tuning.others = other_strategies(search_, own.space, tuning.top.front());
      tuning.pareto = search_.pareto(wanted);
    }
    tuning.search_s = seconds_since(begin_);
    std::vector<Plan> plans;
    for (const Found& found : tuning.top) plans.push_back(found.plan());
    tuning.robustness = robustness_of(search_, choice_framework, adverse_scenarios(*tuning.profile),
                                      options_.search, plans);
  }

  /// Whether the first framework was asked for plans that share data alone.
  bool compares() const {
    return !frameworks_.refusal.empty() ||
           shares_data_alone(search_.frameworks().front().space.base, model_,
                             search_.frameworks().front());
  }

  /// The answer beside data parallelism alone, or beside the frameworks that do more.
  void compare(Tuning& tuning) {
    if (!compares()) return;
    const FrameworkPlans& first = search_.frameworks().front();
    OtherFramework other;
    if (!tuning.model_parallel) {
      if (tuning.top.empty() || search_.stopped()) return;
      const std::vector<std::string> names = model_parallel_names();
      if (names.empty()) return;
      other.stack = fmt::format("{}", fmt::join(names, " or "));
      tuning.other = std::move(other);
      return;
    }
    if (frameworks_.refusal.empty()) other.stack = first.space.base.stack;
    other.refusal = refusal();
    if (other.refusal.empty() && !tuning.top.empty()) compare_with_data_alone(first, tuning, other);
    tuning.other = std::move(other);
  }

  void compare_with_data_alone(const FrameworkPlans& first, const Tuning& tuning,
                               OtherFramework& other) {
    const auto wanted = [&](const Plan& plan) { return shares_data_alone(plan, model_, first); };
    std::vector<Found> plain = search_.best(1, wanted);
    if (plain.empty()) {
      if (search_.stopped()) return;
      if (const std::optional<Overshoot> nearest = search_.nearest(wanted))
        other.closest = search_.judge({nearest->plan}, nearest->framework).front();
      return;
    }
    const Found& best = tuning.top.front();
    other.best = std::move(plain.front());
    other.cost = other.best->score / best.score - 1;
    other.within_uncertainty =
        !is_better_beyond_uncertainty(best.prediction, best.score, other.best->prediction,
                                      other.best->score, options_.search.criteria.objective);
  }

  std::string refusal() const {
    if (!frameworks_.refusal.empty()) return frameworks_.refusal;
    if (!request_.global_batch || *request_.global_batch % request_.gpus == 0) return "";
    if (*request_.global_batch > request_.gpus) return batch_refusal(request_);
    return fmt::format("{} sequences a step are less than one for each of {} GPUs",
                       *request_.global_batch, request_.gpus);
  }

  /// Frameworks with plans whose ranks share more than data.
  std::vector<std::string> model_parallel_names() const {
    std::vector<std::string> names;
    for (const FrameworkPlans& framework : search_.frameworks()) {
      const std::vector<Plan>& plans = framework.space.plans;
      if (std::any_of(plans.rbegin(), plans.rend(), [&](const Plan& plan) {
            return !shares_data_alone(plan, model_, framework);
          })) {
        names.push_back(framework.space.base.stack);
      }
    }
    return names;
  }

  Clock::time_point begin_;
  const Model& model_;
  const Frameworks& frameworks_;
  const Request& request_;
  const TuneOptions& options_;
  Search search_;
};

}  // namespace

bool is_better_beyond_uncertainty(const sim::Prediction& better, double score,
                                  const sim::Prediction& other, double other_score,
                                  Objective objective) {
  if (objective == Objective::kHeadroom) return false;
  const auto half_width = [](const sim::TimePrediction& time) {
    const double whole = portable_log(time.interval_s[1] / time.iteration_s);
    const double shared = time.scale_half_width;
    return std::sqrt(std::max(0.0, whole * whole - shared * shared));
  };
  const double uncertainty = std::hypot(half_width(better.time), half_width(other.time));
  return portable_log(other_score / score) > uncertainty;
}

Tuning tune(const Model& model, const Frameworks& frameworks, const Request& request,
            const TuneOptions& options) {
  return Tuner(model, frameworks, request, options).answer();
}

Tuning tune(const Model& model, const profiles::Profile& profile, const Request& request,
            const TuneOptions& options) {
  return tune(model, {{{&profile, options.search.criteria.headroom}}, ""}, request, options);
}

namespace {

bool shares_more_than_data(const Plan& plan) {
  return plan.parallel.replica() > 1 || plan.parallel.ep > 1;
}

std::vector<Found> search_one(const Model& model, const std::vector<Scenario>& scenarios,
                              const AskedPlans& asked, const SearchOptions& options,
                              std::optional<double> below) {
  Request request = request_of(asked);
  request.stack = scenarios.front().profile.stack.id;
  Search search(model, {plans_of(request, model, scenarios, options.criteria.headroom)}, options);
  const bool filters = asked.extent == Extent::kModelParallel;
  return search.best(1, filters ? shares_more_than_data : Search::Wanted(), below);
}

}  // namespace

Request request_of(const AskedPlans& asked) {
  return asked.extent == Extent::kDataAlone ? sharing_data_alone(asked.request) : asked.request;
}

BestOfRequests best_of_requests(const Model& model, const std::vector<Scenario>& scenarios,
                                const std::vector<AskedPlans>& asked,
                                const SearchOptions& options) {
  BestOfRequests result;
  SearchOptions quiet = options;
  quiet.progress = nullptr;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (quiet.stop != nullptr && quiet.stop->load()) break;
    std::optional<double> below;
    if (result.best) below = result.best->score;
    try {
      std::vector<Found> found = search_one(model, scenarios, asked[i], quiet, below);
      if (found.empty() || (below && found.front().score >= *below)) continue;
      result.best = std::move(found.front());
      result.index = i;
    } catch (const InvalidPlan& error) {
      if (result.refusal.empty()) result.refusal = error.what();
    }
  }
  return result;
}

}  // namespace shardwright::tuner
