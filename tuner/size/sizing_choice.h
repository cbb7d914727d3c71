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
#include <string>
#include <utility>
#include <vector>

#include "sim/core/model.h"
#include "tuner/search/search.h"
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

// Why a size is left out of a sweep, in words.

/// Share of a run's time that has to be useful; below it the run never ends.
inline constexpr double kLeastUseful = 0.01;

/// "131.8 GiB".
std::string gib(double bytes);

/// Master weights and moments are there on every plan, at best shared by all GPUs.
Bytes least_state_bytes(const Model& model, const SizingJob& job, std::int64_t gpus);

/// `nearest`: the plan that comes closest; none where the search was stopped before.
std::string why_nothing_fits(const std::optional<Overshoot>& nearest);

/// Why a run that is interrupted so often gets nowhere.
std::string no_progress(const Goodput& goodput);

// Where more GPUs of a cluster stop paying, and why.
//
// Going from G to r G GPUs pays while the whole run takes at most 1 / (0.8 r) of the days;
// otherwise it costs 25 % more. What the extra GPU time of a token is made of follows from the two
// predictions part by part; how much of it is latency, which grows with the number of ranks and not
// with bytes, is found by predicting the larger one again without any.

inline constexpr double kPaying = 0.8;  // of the ideal speed-up

/// From one number of GPUs to the next.
struct Growth {
  std::size_t from = 0, to = 0;  // indices of Sweep::options
  double ideal = 2;              // ratio of GPUs
  double speedup = 1;            // days before over days after
  double dearer = 0;             // GPU time of the run: 0.25 is a quarter more

  bool pays() const { return speedup >= kPaying * ideal; }
};

/// What `dearer` is made of; shares of the GPU time before. They add up to it.
struct Causes {
  double communication = 0, compute = 0, host = 0, optimizer = 0, failures = 0;
  double tokens = 0;   // more of them, because steps are larger
  double latency = 0;  // part of the step after, that latency takes: not added
};

struct Scaling {
  std::vector<Growth> growth;        // in order of GPUs
  std::optional<std::size_t> knee;   // option with the most GPUs before the first that do not pay
  std::optional<std::size_t> stops;  // index into growth: the first that does not pay
  std::optional<Causes> causes;      // of that one
  bool batch_limit = false;          // the batch leaves no work for more GPUs than were tried
};

/// Of one offer. Options over the critical batch count as no work for more GPUs.
Scaling scaling_of(const Model& model, const Offer& offer, std::size_t index, const Sweep& sweep);

}  // namespace shardwright::tuner
