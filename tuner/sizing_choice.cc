// SPDX-License-Identifier: Apache-2.0
#include "tuner/sizing_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "sim/core/parallelism.h"
#include "sim/core/rack.h"
#include "tuner/contest.h"

namespace shardwright::tuner {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

double usd(const Sized& option) {
  return option.cost.usd.value_or(kUnknown);
}

/// Days times dollars; where no price is known, times GPUs.
double days_by_cost(const Sized& option) {
  return option.cost.days * usd(option);
}

auto by_cost(const Sized& option) {
  return std::make_tuple(usd(option), option.cost.days, option.gpus());
}
auto by_days(const Sized& option) {
  return std::make_tuple(option.cost.days, usd(option), option.gpus());
}

std::vector<std::size_t> comparable(const std::vector<Sized>& options) {
  const auto those = [&](const std::function<bool(const Sized&)>& wanted) {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (wanted(options[i])) indices.push_back(i);
    }
    return indices;
  };
  std::vector<std::size_t> result = those([](const Sized& option) {
    return !option.over_critical && !option.cut_short && !option.shown_only;
  });
  if (result.empty()) {
    result = those([](const Sized& option) { return !option.over_critical && !option.cut_short; });
  }
  if (result.empty()) result = those([](const Sized& option) { return !option.cut_short; });
  if (result.empty()) result = those([](const Sized&) { return true; });
  return result;
}

/// The first of the least by `key` among those wanted.
template <class Key>
std::optional<std::size_t> least(const std::vector<Sized>& options,
                                 const std::vector<std::size_t>& among, Key key,
                                 const std::function<bool(const Sized&)>& wanted) {
  std::optional<std::size_t> best;
  for (const std::size_t i : among) {
    if (!wanted(options[i])) continue;
    if (!best || key(options[i]) < key(options[*best])) best = i;
  }
  return best;
}

bool anything(const Sized&) {
  return true;
}

/// What sizes are multiples of: of racks the power of two that jobs take of each.
std::int64_t whole_node(const Cluster& cluster) {
  const std::int64_t node = cluster.gpus_per_node;
  return is_rack(node) ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(node)))
                       : node;
}

bool divides_the_model(const Sized& option) {
  return !beyond_data_parallel(option.prediction.plan).empty();
}

/// The least by `key`. An option that needs other software for its divided plan has to be better
/// than the least of data parallelism by more than the predictions are in doubt, as takes_over()
/// asks of two plans for the same GPUs; `score` grows as a step's time does.
template <class Key>
std::optional<std::size_t> least_for_sure(const std::vector<Sized>& options,
                                          const std::vector<std::size_t>& among, Key key,
                                          const std::function<double(const Sized&)>& score,
                                          const std::function<bool(const Sized&)>& wanted) {
  const std::optional<std::size_t> best = least(options, among, key, wanted);
  if (!best || !divides_the_model(options[*best])) return best;
  const Sized& divided = options[*best];
  const std::optional<std::size_t> plain = least(options, among, key, [&](const Sized& option) {
    return wanted(option) && !divides_the_model(option) &&
           option.prediction.plan.stack != divided.prediction.plan.stack;
  });
  if (!plain || takes_over(divided.prediction, score(divided), options[*plain].prediction,
                           score(options[*plain]), Objective::kTime)) {
    return best;
  }
  return plain;
}

std::optional<std::size_t> recommend(const std::vector<Sized>& options,
                                     const std::vector<std::size_t>& among, const Goal& goal,
                                     bool (*wanted)(const Sized&, const Goal&) = meets) {
  const auto does = [&](const Sized& option) { return wanted(option, goal); };
  const auto days = [](const Sized& option) { return option.cost.days; };
  if (goal.deadline_days) return least_for_sure(options, among, by_cost, usd, does);
  if (goal.budget_usd) return least_for_sure(options, among, by_days, days, does);
  const auto priced = [](const Sized& option) { return option.cost.usd.has_value(); };
  const auto both = [](const Sized& option) { return std::sqrt(days_by_cost(option)); };
  if (auto best = least_for_sure(options, among, days_by_cost, both, priced)) return best;
  return least_for_sure(options, among, by_days, days, anything);
}

}  // namespace

bool meets_deadline(const Sized& option, const Goal& goal) {
  return !goal.deadline_days || option.cost.days <= *goal.deadline_days;
}

bool meets_budget(const Sized& option, const Goal& goal) {
  return !goal.budget_usd || usd(option) <= *goal.budget_usd;
}

bool meets(const Sized& option, const Goal& goal) {
  return meets_deadline(option, goal) && meets_budget(option, goal);
}

bool meets_safely(const Sized& option, const Goal& goal) {
  return meets(option, goal) &&
         (!goal.deadline_days || option.cost.days_interval[1] <= *goal.deadline_days);
}

Choice choose(const std::vector<Sized>& options, const Goal& goal) {
  Choice choice;
  std::vector<std::size_t> among = comparable(options);
  choice.in_the_middle = recommend(options, among, goal);
  choice.recommended = recommend(options, among, goal, meets_safely);
  choice.safe = goal.deadline_days && choice.recommended;
  if (!choice.recommended) choice.recommended = choice.in_the_middle;
  const auto priced = [](const Sized& option) { return option.cost.usd.has_value(); };
  const auto in_time = [&](const Sized& option) { return meets_deadline(option, goal); };
  const auto in_budget = [&](const Sized& option) { return meets_budget(option, goal); };
  choice.cheapest = least(options, among, by_cost, priced);
  choice.fastest = least(options, among, by_days, anything);
  choice.cheapest_in_time = least(options, among, by_cost, in_time);
  choice.fastest_in_budget = least(options, among, by_days, in_budget);
  if (!choice.recommended) {
    std::vector<std::size_t> all(options.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    choice.beyond_critical = least(options, all, by_cost, [&](const Sized& option) {
      return option.over_critical && meets(option, goal);
    });
  }
  std::stable_sort(among.begin(), among.end(), [&](std::size_t a, std::size_t b) {
    return by_days(options[a]) < by_days(options[b]);
  });
  double cheapest = kUnknown;
  for (const std::size_t i : among) {
    if (usd(options[i]) >= cheapest) continue;
    cheapest = usd(options[i]);
    choice.pareto.push_back(i);
  }
  return choice;
}

std::vector<std::size_t> best_of_each(const std::vector<Sized>& options, const Goal& goal) {
  std::map<std::size_t, std::vector<std::size_t>> offers;
  for (const std::size_t i : comparable(options)) offers[options[i].offer].push_back(i);
  // Those that are shown only have a best size, too.
  for (std::size_t i = 0; i < options.size(); ++i) {
    const Sized& option = options[i];
    if (option.shown_only && !option.over_critical && !option.cut_short &&
        (offers[option.offer].empty() || offers[option.offer].back() < i)) {
      offers[option.offer].push_back(i);
    }
  }
  std::vector<std::size_t> result;
  for (const auto& [offer, among] : offers) {
    const auto in_time = [&](const Sized& option) { return meets_deadline(option, goal); };
    std::optional<std::size_t> best = recommend(options, among, goal, meets_safely);
    if (!best) best = recommend(options, among, goal);
    if (!best) best = least(options, among, by_cost, in_time);
    if (!best) best = least(options, among, by_days, anything);
    if (best) result.push_back(*best);
  }
  const auto preference = [&](std::size_t i) {
    const Sized& option = options[i];
    // Money where the deadline decides who counts, else time.
    const double first = goal.deadline_days || !goal.budget_usd ? usd(option) : option.cost.days;
    return std::make_tuple(option.shown_only, !meets_safely(option, goal), !meets(option, goal),
                           !meets_deadline(option, goal), first, option.cost.days);
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](std::size_t a, std::size_t b) { return preference(a) < preference(b); });
  return result;
}

std::vector<std::pair<std::size_t, std::int64_t>> sizes_near_deadline(
    const std::vector<Sized>& options, const std::vector<Offer>& offers, const Goal& goal,
    std::int64_t max_gpus) {
  constexpr std::size_t kOffers = 3;
  std::set<std::pair<std::size_t, std::int64_t>> sizes;
  if (!goal.deadline_days) return {};
  std::vector<std::size_t> best = best_of_each(options, goal);
  if (best.size() > kOffers) best.resize(kOffers);
  const auto tried = [&](std::size_t offer, std::int64_t gpus) {
    return std::any_of(options.begin(), options.end(), [&](const Sized& option) {
      return option.offer == offer && option.gpus() == gpus;
    });
  };
  for (const std::size_t i : best) {
    const Sized& option = options[i];
    const Cluster& cluster = offers[option.offer].profile.cluster;
    const std::int64_t node = whole_node(cluster);
    if (cluster.nics_per_node == 0) continue;
    for (const double days : {option.cost.days, option.cost.days_interval[1]}) {
      const double needed = static_cast<double>(option.gpus()) * days / *goal.deadline_days;
      const auto nodes = static_cast<std::int64_t>(std::ceil(needed / static_cast<double>(node)));
      // Smaller steps a GPU are a little slower: a few percent above what is needed, too.
      for (const std::int64_t n : {nodes, nodes + std::max<std::int64_t>(1, nodes / 16)}) {
        const std::int64_t gpus = n * node;
        if (gpus >= node && gpus <= max_gpus && !tried(option.offer, gpus))
          sizes.emplace(option.offer, gpus);
      }
    }
  }
  return {sizes.begin(), sizes.end()};
}

std::vector<BreakEven> break_even(const std::vector<Sized>& options, const Choice& choice,
                                  const Goal& goal) {
  std::vector<BreakEven> result;
  if (!choice.recommended || !options[*choice.recommended].cost.usd) return result;
  const Sized& winner = options[*choice.recommended];
  std::map<std::size_t, std::size_t> least_hours;  // by offer
  for (std::size_t i = 0; i < options.size(); ++i) {
    const Sized& option = options[i];
    if (option.over_critical || option.cut_short) continue;
    if (option.offer == winner.offer || !meets_deadline(option, goal)) continue;
    if (choice.safe && option.cost.days_interval[1] > *goal.deadline_days) continue;
    const auto [at, first] = least_hours.emplace(option.offer, i);
    if (!first && option.cost.gpu_hours < options[at->second].cost.gpu_hours) at->second = i;
  }
  for (const auto& [offer, i] : least_hours)
    result.push_back({offer, i, *winner.cost.usd / options[i].cost.gpu_hours});
  return result;
}

}  // namespace shardwright::tuner
