// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/sizing_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "sim/core/base/worker_pool.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"

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

/// The deadline is met safely, the budget in the middle at least.
bool meets_deadline_safely(const Sized& option, const Goal& goal) {
  return meets(option, goal) && meets_safely(option, {goal.deadline_days, {}});
}

std::optional<std::size_t> recommend(const std::vector<Sized>& options,
                                     const std::vector<std::size_t>& among, const Goal& goal,
                                     bool (*wanted)(const Sized&, const Goal&) = meets) {
  const auto does = [&](const Sized& option) { return wanted(option, goal); };
  if (goal.deadline_days) return least(options, among, by_cost, does);
  if (goal.budget_usd) return least(options, among, by_days, does);
  const auto priced = [](const Sized& option) { return option.cost.usd.has_value(); };
  if (auto best = least(options, among, days_by_cost, priced)) return best;
  return least(options, among, by_days, anything);
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
  const Misses misses = misses_of(option, goal);
  return meets(option, goal) && misses.deadline.value_or(0) <= kSafeMiss &&
         misses.budget.value_or(0) <= kSafeMiss;
}

Misses misses_of(const Sized& option, const Goal& goal) {
  const RunCost& cost = option.cost;
  Misses misses;
  if (goal.deadline_days)
    misses.deadline =
        probability_above(*goal.deadline_days, cost.days, cost.days_interval, cost.level);
  if (goal.budget_usd && cost.usd && cost.usd_interval)
    misses.budget = probability_above(*goal.budget_usd, *cost.usd, *cost.usd_interval, cost.level);
  return misses;
}

Choice choose(const std::vector<Sized>& options, const Goal& goal) {
  Choice choice;
  std::vector<std::size_t> among = comparable(options);
  choice.in_the_middle = recommend(options, among, goal);
  choice.recommended = recommend(options, among, goal, meets_safely);
  choice.safe = (goal.deadline_days || goal.budget_usd) && choice.recommended;
  if (!choice.recommended)
    choice.recommended = recommend(options, among, goal, meets_deadline_safely);
  if (!choice.recommended) choice.recommended = choice.in_the_middle;
  const auto fewest_gpus = [](const Sized& option) { return option.gpus(); };
  const auto fewest = [&](bool (*wanted)(const Sized&, const Goal&)) {
    return least(options, among, fewest_gpus, [&](const Sized& option) {
      return option.offer == options[*choice.recommended].offer && wanted(option, goal);
    });
  };
  if (choice.recommended && goal.deadline_days) {
    choice.smallest = fewest(meets);
    choice.smallest_safe = fewest(meets_safely);
  }
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
    if (!best) best = recommend(options, among, goal, meets_deadline_safely);
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

namespace {

/// The neighbours between which the answer of one offer lies: `inside` meets the goal, `outside`
/// does not.
struct Bracket {
  const Sized* inside = nullptr;
  const Sized* outside = nullptr;
};

/// With fewer GPUs outside, the smallest that meets; with more, the largest.
Bracket bracket_of(const std::vector<Sized>& options, std::size_t offer, bool largest,
                   const std::function<bool(const Sized&)>& does) {
  const auto better = [&](const Sized& one, const Sized* other) {
    return other == nullptr || (one.gpus() > other->gpus()) == largest;
  };
  Bracket bracket;
  for (const Sized& option : options) {
    if (option.offer == offer && !option.cut_short && does(option) &&
        better(option, bracket.inside))
      bracket.inside = &option;
  }
  if (bracket.inside == nullptr) return bracket;
  for (const Sized& option : options) {
    const bool beyond =
        largest ? option.gpus() > bracket.inside->gpus() : option.gpus() < bracket.inside->gpus();
    const auto nearer = [&] {
      return bracket.outside == nullptr || (option.gpus() < bracket.outside->gpus()) == largest;
    };
    if (option.offer == offer && !option.cut_short && beyond && !does(option) && nearer())
      bracket.outside = &option;
  }
  return bracket;
}

/// What is exceeded in one case of ten.
double safe_value(double value, const std::array<double, 2>& interval, double level) {
  double low = value, high = 10 * interval[1];
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    const double missed = probability_above(middle, value, interval, level);
    (missed > kSafeMiss ? low : high) = middle;
  }
  return high;
}

double days_in_the_middle(const Sized& option) {
  return option.cost.days;
}

double safe_days(const Sized& option) {
  return safe_value(option.cost.days, option.cost.days_interval, option.cost.level);
}

double safe_usd(const Sized& option) {
  if (!option.cost.usd || !option.cost.usd_interval) return usd(option);
  return safe_value(*option.cost.usd, *option.cost.usd_interval, option.cost.level);
}

/// Whole nodes strictly between the two, nearest to `gpus`; none where nothing lies between.
std::optional<std::int64_t> whole_nodes_between(const Bracket& bracket, double gpus,
                                                std::int64_t node) {
  if (bracket.inside == nullptr || bracket.outside == nullptr) return std::nullopt;
  const std::int64_t least = std::min(bracket.inside->gpus(), bracket.outside->gpus());
  const std::int64_t most = std::max(bracket.inside->gpus(), bracket.outside->gpus());
  constexpr std::int64_t kSteps = 64;  // of the size, so that replicas share the nodes
  const auto nodes = static_cast<std::uint64_t>(std::max<std::int64_t>(1, most / node));
  const std::int64_t unit =
      node * std::max<std::int64_t>(1, static_cast<std::int64_t>(std::bit_floor(nodes)) / kSteps);
  const std::int64_t first = (least / unit + 1) * unit, last = (most - 1) / unit * unit;
  if (first > last) return std::nullopt;
  const auto wanted = static_cast<std::int64_t>(std::ceil(gpus / static_cast<double>(unit))) * unit;
  return std::clamp(wanted, first, last);
}

}  // namespace

std::vector<std::pair<std::size_t, std::int64_t>> sizes_to_try(const std::vector<Sized>& options,
                                                               const std::vector<Offer>& offers,
                                                               const Goal& goal) {
  constexpr std::size_t kOffers = 4;  // the answer and those whose prices flip it
  std::set<std::pair<std::size_t, std::int64_t>> sizes;
  std::vector<std::size_t> best = best_of_each(options, goal);
  if (best.size() > kOffers) best.resize(kOffers);
  for (const std::size_t i : best) {
    const std::size_t offer = options[i].offer;
    const Cluster& cluster = offers[offer].profile.cluster;
    if (cluster.nics_per_node == 0) continue;
    const auto add = [&](const Bracket& bracket, double gpus) {
      if (const auto size = whole_nodes_between(bracket, gpus, whole_node(cluster)))
        sizes.emplace(offer, *size);
    };
    if (goal.deadline_days) {
      for (double (*days)(const Sized&) : {days_in_the_middle, safe_days}) {
        const Bracket bracket = bracket_of(options, offer, false, [&](const Sized& option) {
          return days(option) <= *goal.deadline_days;
        });
        if (bracket.outside == nullptr) continue;
        const auto gpus = static_cast<double>(bracket.outside->gpus());
        add(bracket, gpus * days(*bracket.outside) / *goal.deadline_days);
      }
    } else if (goal.budget_usd) {
      for (double (*dollars)(const Sized&) : {usd, safe_usd}) {
        const Bracket bracket = bracket_of(options, offer, true, [&](const Sized& option) {
          return dollars(option) <= *goal.budget_usd;
        });
        if (bracket.inside == nullptr || bracket.outside == nullptr || !bracket.outside->cost.usd)
          continue;
        const auto least = static_cast<double>(bracket.inside->gpus());
        const auto more = static_cast<double>(bracket.outside->gpus()) - least;
        add(bracket, least + more * (*goal.budget_usd - dollars(*bracket.inside)) /
                                 (dollars(*bracket.outside) - dollars(*bracket.inside)));
      }
    }
  }
  return {sizes.begin(), sizes.end()};
}

void refine(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const Goal& goal, Sweep& sweep) {
  constexpr int kMostRounds = 12;
  if (job.gpus || sweep.stopped) return;
  std::set<std::pair<std::size_t, std::int64_t>> tried;  // also those that have no plan
  for (int round = 0; round < kMostRounds; ++round) {
    auto sizes = sizes_to_try(sweep.options, offers, goal);
    std::erase_if(sizes, [&](const auto& size) { return !tried.insert(size).second; });
    if (sizes.empty()) return;
    sweep_between(model, offers, job, sizes, sweep);
  }
}

namespace {

constexpr std::size_t kNamed = 4;  // best sizes of clusters that sentences name

/// The largest size of its offer below it.
std::optional<std::size_t> next_smaller(const std::vector<Sized>& options, std::size_t of) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (options[i].offer != options[of].offer || options[i].gpus() >= options[of].gpus()) continue;
    if (!found || options[i].gpus() > options[*found].gpus()) found = i;
  }
  return found;
}

/// Options that an answer names, and those that show that the named ones are the smallest.
std::set<std::size_t> named_options(const std::vector<Sized>& options, const Goal& goal) {
  const Choice choice = choose(options, goal);
  std::set<std::size_t> named;
  for (const auto& index : {choice.recommended, choice.in_the_middle, choice.smallest,
                            choice.smallest_safe, choice.cheapest_in_time, choice.fastest}) {
    if (index) named.insert(*index);
  }
  for (const auto& smallest : {choice.smallest, choice.smallest_safe}) {
    if (!smallest) continue;
    if (const auto smaller = next_smaller(options, *smallest)) named.insert(*smaller);
  }
  std::vector<std::size_t> best = best_of_each(options, goal);
  best.resize(std::min(best.size(), kNamed));
  named.insert(best.begin(), best.end());
  return named;
}

void polish_one(const Model& model, const std::vector<Offer>& offers, SizingJob job,
                Sized& option) {
  const Plan& plan = option.prediction.plan;
  job.gpus = plan.gpus;
  if (!job.fixed.grad_accum) {
    job.fixed.global_batch =
        std::llround(option.tokens_per_step / static_cast<double>(plan.seq_len));
  }
  SweepOptions fine;
  fine.fine = true;
  Sweep again = shardwright::tuner::sweep(model, {offers[option.offer]}, job, fine);
  if (again.options.empty() || again.options.front().cost.days >= option.cost.days) return;
  Sized& better = again.options.front();
  better.offer = option.offer;
  better.between = option.between;
  if (option.plain && (!better.plain || option.plain->days < better.plain->days))
    better.plain = option.plain;
  option = std::move(better);
}

}  // namespace

void polish(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const Goal& goal, Sweep& sweep) {
  constexpr int kMostRounds = 6;
  if (sweep.stopped || sweep.options.empty()) return;
  std::set<std::size_t> polished;
  for (int round = 0; round < kMostRounds; ++round) {
    std::vector<std::size_t> next;
    for (const std::size_t i : named_options(sweep.options, goal)) {
      const Sized& option = sweep.options[i];
      const auto& other = offers[option.offer].model_parallel;
      const bool coarse = other && other->stack.id == option.prediction.plan.stack;
      if (polished.insert(i).second && coarse) next.push_back(i);
    }
    if (next.empty()) return;
    for_each_index(next.size(), 0,
                   [&](std::size_t i) { polish_one(model, offers, job, sweep.options[next[i]]); });
  }
}

namespace {

/// The price of a GPU hour at which the option draws level with the winner: in dollars where a
/// deadline is all that time has to meet, in days where a budget is all that dollars have to, and
/// in the product of both without a goal. None where no price does.
std::optional<double> level_price(const Sized& option, const Sized& winner, const Goal& goal) {
  if (goal.deadline_days) return *winner.cost.usd / option.cost.gpu_hours;
  if (!goal.budget_usd)
    return *winner.cost.usd * winner.cost.days / (option.cost.days * option.cost.gpu_hours);
  if (option.cost.days >= winner.cost.days) return std::nullopt;
  return *goal.budget_usd / option.cost.gpu_hours;
}

}  // namespace

std::vector<BreakEven> break_even(const std::vector<Sized>& options, const Choice& choice,
                                  const Goal& goal) {
  std::vector<BreakEven> result;
  if (!choice.recommended || !options[*choice.recommended].cost.usd) return result;
  const Sized& winner = options[*choice.recommended];
  // A budget that the winner keeps safely has to be kept as safely, whatever the price.
  Goal kept = goal;
  if (goal.budget_usd && choice.safe) *kept.budget_usd *= *winner.cost.usd / safe_usd(winner);
  std::map<std::size_t, BreakEven> highest;  // by offer
  for (std::size_t i = 0; i < options.size(); ++i) {
    const Sized& option = options[i];
    if (option.over_critical || option.cut_short) continue;
    if (option.offer == winner.offer || !meets_deadline(option, goal)) continue;
    if (choice.safe && !meets_safely(option, {goal.deadline_days, {}})) continue;
    const std::optional<double> price = level_price(option, winner, kept);
    if (!price) continue;
    BreakEven& entry = highest[option.offer];
    if (*price <= entry.usd_per_gpu_hour) continue;
    entry = {option.offer, i, *price, {}};
    if (option.cost.usd) entry.distance = *option.cost.usd / option.cost.gpu_hours / *price;
  }
  for (const auto& [offer, entry] : highest) result.push_back(entry);
  const auto rank = [&](const BreakEven& entry) {
    return std::make_tuple(options[entry.option].shown_only, entry.distance.value_or(kUnknown));
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return result;
}

std::string gib(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / kGiB);
}

Bytes least_state_bytes(const Model& model, const SizingJob& job, std::int64_t gpus) {
  if (job.fixed.offload != Offload::kNone) return 0;
  Plan plan;
  plan.master_dtype =
      job.fixed.allow_bf16_master ? DType::kBf16 : job.fixed.master_dtype.value_or(DType::kFp32);
  plan.moment_dtype =
      job.fixed.allow_bf16_moments ? DType::kBf16 : job.fixed.moment_dtype.value_or(DType::kFp32);
  return checkpoint_bytes(model, plan) / gpus;
}

std::string why_nothing_fits(const std::optional<Overshoot>& nearest) {
  if (!nearest) return "no plan was tried before the interruption";
  if (nearest->excess_bytes <= 0)
    return "the nearest plan fits only by emptying the allocator's cache in every step";
  return fmt::format("the nearest plan takes {} more than it may of a GPU",
                     gib(static_cast<double>(nearest->excess_bytes)));
}

std::string no_progress(const Goodput& goodput) {
  return fmt::format(
      "an interruption every {:.3g} hours, with {:.3g} s for a checkpoint, leaves less than "
      "{:.0f} % of the time useful",
      goodput.mtbf_s / 3600, goodput.checkpoint_s, 100 * kLeastUseful);
}

namespace {

/// GPU days of the whole run, by where they go.
struct GpuTime {
  double compute = 0, communication = 0, host = 0, optimizer = 0, tokens = 0, failures = 0;

  double total() const { return compute + communication + host + optimizer + tokens + failures; }
};

GpuTime gpu_time(const Sized& option) {
  const sim::TimePrediction& time = option.prediction.time;
  const auto gpus = static_cast<double>(option.gpus());
  const double steps = option.cost.ideal_days * gpus, unit = steps / time.iteration_s;
  GpuTime result;
  result.communication = unit * time.exposed_communication_s;
  result.host = unit * time.host_s;
  result.optimizer = unit * time.optimizer_s;
  result.compute = steps - result.communication - result.host - result.optimizer;
  result.tokens = steps * (option.cost.tokens_factor - 1);
  result.failures = option.cost.days * gpus - steps - result.tokens;
  return result;
}

/// The profile of a network and links that only have bandwidth.
profiles::Profile without_latency(profiles::Profile profile) {
  profile.cluster.net_latency_s = 0;
  profiles::CollectiveParams& params = profile.cost.collectives.values;
  params.ll.hop_s = params.ll128.hop_s = params.simple.hop_s = params.nvls_simple.hop_s = 0;
  profiles::NcclTable& nccl = params.nccl;
  nccl.ring_nvlink_hop_s = nccl.ring_pci_hop_s = nccl.ring_net_hop_s = {};
  nccl.tree_nvlink_hop_s = nccl.tree_pci_hop_s = nccl.tree_net_hop_s = {};
  nccl.pat_rank_s = nccl.net_overhead_intel_s = nccl.net_overhead_amd_s = 0;
  return profile;
}

double latency_share(const Model& model, const Offer& offer, const Sized& option) {
  const sim::Prediction without = sim::predict(
      model, without_latency(profile_for(offer, option.prediction.plan)), option.prediction.plan);
  return std::max(0.0, 1 - without.time.iteration_s / option.prediction.time.iteration_s);
}

Causes causes_of(const Sized& before, const Sized& after) {
  const GpuTime a = gpu_time(before), b = gpu_time(after);
  const double unit = 1 / a.total();
  return {(b.communication - a.communication) * unit,
          (b.compute - a.compute) * unit,
          (b.host - a.host) * unit,
          (b.optimizer - a.optimizer) * unit,
          (b.failures - a.failures) * unit,
          (b.tokens - a.tokens) * unit,
          0};
}

}  // namespace

Scaling scaling_of(const Model& model, const Offer& offer, std::size_t index, const Sweep& sweep) {
  Scaling scaling;
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < sweep.options.size(); ++i) {
    const Sized& option = sweep.options[i];
    if (option.offer != index || option.cut_short || option.between) continue;
    if (option.over_critical) {
      scaling.batch_limit = true;
    } else {
      mine.push_back(i);
    }
  }
  if (mine.empty()) return scaling;
  const std::int64_t most = sweep.options[mine.back()].gpus();
  for (const LeftOut& left : sweep.left_out) {
    if (left.offer == index && left.lack == Lack::kBatch && left.gpus > most)
      scaling.batch_limit = true;
  }
  scaling.knee = mine.front();
  for (std::size_t i = 1; i < mine.size(); ++i) {
    const Sized &before = sweep.options[mine[i - 1]], &after = sweep.options[mine[i]];
    Growth growth;
    growth.from = mine[i - 1];
    growth.to = mine[i];
    growth.ideal = static_cast<double>(after.gpus()) / static_cast<double>(before.gpus());
    growth.speedup = before.cost.days / after.cost.days;
    growth.dearer = growth.ideal / growth.speedup - 1;
    if (!scaling.stops) {
      if (growth.pays()) {
        scaling.knee = mine[i];
      } else {
        scaling.stops = scaling.growth.size();
        scaling.causes = causes_of(before, after);
        scaling.causes->latency = latency_share(model, offer, after);
      }
    }
    scaling.growth.push_back(growth);
  }
  return scaling;
}

}  // namespace shardwright::tuner
