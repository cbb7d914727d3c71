// SPDX-License-Identifier: Apache-2.0
// What to make of a sweep: who meets the goal, the front of days and dollars, what to take.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tuner/sizing.h"

namespace shardwright::tuner {

struct Goal {
  std::optional<double> deadline_days{};
  std::optional<double> budget_usd{};
};

bool meets_deadline(const Sized& option, const Goal& goal);
/// Not when there is a budget and the price is unknown.
bool meets_budget(const Sized& option, const Goal& goal);
bool meets(const Sized& option, const Goal& goal);

/// Indices of Sweep::options. Only options that train the same run count: not those whose batch had
/// to grow beyond the critical one or whose search was interrupted, unless there are no others.
struct Choice {
  std::vector<std::size_t> pareto;  // nothing is both faster and cheaper; fastest first
  /// The cheapest that meets the goal; with a budget and no deadline the fastest. Without a goal
  /// the one with the least product of days and dollars.
  std::optional<std::size_t> recommended;
  std::optional<std::size_t> cheapest, fastest;  // of all
  std::optional<std::size_t> cheapest_in_time;   // of those that meet the deadline
  std::optional<std::size_t> fastest_in_budget;  // of those that meet the budget
  /// The cheapest that meets the goal, of those that do not count for their batch; only where
  /// nothing is recommended.
  std::optional<std::size_t> beyond_critical;
};

Choice choose(const std::vector<Sized>& options, const Goal& goal);

/// The best option of each offer that has one, in the same sense as Choice::recommended; where none
/// meets the deadline, its fastest, where none meets the budget only, its cheapest. In order of
/// preference: first those that meet the goal.
std::vector<std::size_t> best_of_each(const std::vector<Sized>& options, const Goal& goal);

}  // namespace shardwright::tuner
