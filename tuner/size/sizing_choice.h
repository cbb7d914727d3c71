// SPDX-License-Identifier: Apache-2.0
// What to make of a sweep: who meets the goal, the Pareto front of days and dollars, what to take,
// which sizes between those tried are worth a look, and at which price another cluster would have
// won.
//
// Whole runs scatter, so what just meets a goal in the middle misses it in half of all cases. The
// safe size comes first, where there is one: it misses deadline and budget in one case of ten at
// most; then one that is safe for the deadline alone.
// Both it and the smallest that meets the goal in the middle are found by a search over whole
// nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tuner/size/sizing.h"

namespace shardwright::tuner {

struct Goal {
  std::optional<double> deadline_days{};
  std::optional<double> budget_usd{};
};

bool meets_deadline(const Sized& option, const Goal& goal);
/// Not when there is a budget and the price is unknown.
bool meets_budget(const Sized& option, const Goal& goal);
bool meets(const Sized& option, const Goal& goal);
/// How often a safe option may miss the deadline or the budget.
inline constexpr double kSafeMiss = 0.1;

/// Probabilities of missing the goal, by the interval of the whole run; none where it is not asked
/// or the price is unknown.
struct Misses {
  std::optional<double> deadline, budget;
};
Misses misses_of(const Sized& option, const Goal& goal);

/// The goal is met, and deadline and budget are missed in one case of ten at most, each.
bool meets_safely(const Sized& option, const Goal& goal);

/// Indices of Sweep::options. Only options that train the same run count: not those whose batch had
/// to grow beyond the critical one or whose search was interrupted, nor those of clusters that are
/// shown only, unless there are no others.
struct Choice {
  std::vector<std::size_t> pareto;  // nothing is both faster and cheaper; fastest first
  /// The cheapest that meets the goal; with a budget and no deadline the fastest. Without a goal
  /// the one with the least product of days and dollars.
  std::optional<std::size_t> recommended;
  /// What `recommended` were if chances did not matter; the same where nothing is safe.
  std::optional<std::size_t> in_the_middle;
  /// Of the cluster that is recommended the fewest GPUs that meet the goal, and that do so safely.
  std::optional<std::size_t> smallest, smallest_safe;
  bool safe = false;  // there is a goal and the recommended option meets it safely
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

/// The next sizes to look at, of the few best offers, as (offer, GPUs): between the smallest that
/// is known to meet the goal, in the middle or safely, and the largest below it that does not; with
/// a budget alone, between the largest that it pays, in the middle or safely, and the smallest that
/// it does not. Whole nodes, in steps of about a hundredth. Empty once nothing lies between.
std::vector<std::pair<std::size_t, std::int64_t>> sizes_to_try(const std::vector<Sized>& options,
                                                               const std::vector<Offer>& offers,
                                                               const Goal& goal);

/// Looks at those sizes, as often as there are any.
void refine(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const Goal& goal, Sweep& sweep);

/// The sizes that an answer names get the best of all plans that `tune` searches, the batch kept.
void polish(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const Goal& goal, Sweep& sweep);

/// What a cluster that lost would have to cost to draw level with the recommended option, by what
/// decides: dollars with a deadline, days with a budget alone, their product without a goal.
struct BreakEven {
  std::size_t offer = 0;
  std::size_t option = 0;  // its size that wins at the highest price and meets the goal so
  double usd_per_gpu_hour = 0;
  /// Today's price over that one; none where there is no price today.
  std::optional<double> distance;
};

/// The nearest to today's prices first, what was never measured last; those without an option that
/// meets the deadline are left out. Empty where nothing is recommended or the recommended option
/// has no price.
std::vector<BreakEven> break_even(const std::vector<Sized>& options, const Choice& choice,
                                  const Goal& goal);

}  // namespace shardwright::tuner
