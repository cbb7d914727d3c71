// SPDX-License-Identifier: Apache-2.0
#include "tuner/sizing_choice.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace shardwright::tuner {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

double usd(const Sized& option) {
  return option.usd.value_or(kUnknown);
}

/// Days times dollars; where no price is known, times GPUs.
double days_by_cost(const Sized& option) {
  return option.days * usd(option);
}

auto by_cost(const Sized& option) {
  return std::make_tuple(usd(option), option.days, option.gpus());
}
auto by_days(const Sized& option) {
  return std::make_tuple(option.days, usd(option), option.gpus());
}

std::vector<std::size_t> comparable(const std::vector<Sized>& options) {
  const auto those = [&](const std::function<bool(const Sized&)>& wanted) {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (wanted(options[i])) indices.push_back(i);
    }
    return indices;
  };
  std::vector<std::size_t> result =
      those([](const Sized& option) { return !option.over_critical && !option.cut_short; });
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

std::optional<std::size_t> recommend(const std::vector<Sized>& options,
                                     const std::vector<std::size_t>& among, const Goal& goal) {
  const auto wanted = [&](const Sized& option) { return meets(option, goal); };
  if (goal.deadline_days) return least(options, among, by_cost, wanted);
  if (goal.budget_usd) return least(options, among, by_days, wanted);
  const auto priced = [](const Sized& option) { return option.usd.has_value(); };
  if (auto best = least(options, among, days_by_cost, priced)) return best;
  return least(options, among, by_days, anything);
}

}  // namespace

bool meets_deadline(const Sized& option, const Goal& goal) {
  return !goal.deadline_days || option.days <= *goal.deadline_days;
}

bool meets_budget(const Sized& option, const Goal& goal) {
  return !goal.budget_usd || usd(option) <= *goal.budget_usd;
}

bool meets(const Sized& option, const Goal& goal) {
  return meets_deadline(option, goal) && meets_budget(option, goal);
}

Choice choose(const std::vector<Sized>& options, const Goal& goal) {
  Choice choice;
  std::vector<std::size_t> among = comparable(options);
  choice.recommended = recommend(options, among, goal);
  const auto priced = [](const Sized& option) { return option.usd.has_value(); };
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
  std::vector<std::size_t> result;
  for (const auto& [offer, among] : offers) {
    const auto in_time = [&](const Sized& option) { return meets_deadline(option, goal); };
    std::optional<std::size_t> best = recommend(options, among, goal);
    if (!best) best = least(options, among, by_cost, in_time);
    if (!best) best = least(options, among, by_days, anything);
    if (best) result.push_back(*best);
  }
  const auto preference = [&](std::size_t i) {
    const Sized& option = options[i];
    // Money where the deadline decides who counts, else time.
    const double first = goal.deadline_days || !goal.budget_usd ? usd(option) : option.days;
    return std::make_tuple(!meets(option, goal), !meets_deadline(option, goal), first, option.days);
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](std::size_t a, std::size_t b) { return preference(a) < preference(b); });
  return result;
}

}  // namespace shardwright::tuner
