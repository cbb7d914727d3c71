// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/sizing.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/gpu_cost.h"
#include "profiles/ledger/ledger_profile.h"
#include "profiles/prices/price.h"
#include "profiles/stack_file.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/robustness.h"
#include "tuner/search/search.h"
#include "tuner/search/space.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::tuner {

namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kSharpness = 1.25;  // of the critical batch: the fit is no better than that

constexpr double kTooSlow = 20;        // times the deadline
constexpr double kNeverTooSlow = 365;  // days
constexpr double kSlowestDays = 3650;  // without a deadline

struct Task {
  std::size_t offer = 0;
  std::int64_t gpus = 0;
  bool largest = false;  // that is tried of this offer
};

/// All of an offer that a prediction depends on: clusters of equal text differ in name and price.
std::string physics_of_offer(const Offer& offer) {
  profiles::Profile profile = offer.profile;
  profile.cluster.usd_per_gpu_hour = 0;
  std::string text = physics_of(profile);
  if (offer.model_parallel) text += " " + offer.model_parallel->stack.id;
  return text;
}

using Outcome = std::variant<std::monostate, Sized, LeftOut>;

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

/// Days by 6 FLOPs per parameter and token at 40 % of the peak: only to order the work.
double rough_days(const Model& model, const Offer& offer, const SizingJob& job, std::int64_t gpus) {
  const double flops =
      6 * as_double(count_parameters(model).active(model.layers)) * job.run.tokens /
      (0.4 * std::max(1.0, offer.profile.cluster.gpu.peak_bf16_flops) * as_double(gpus));
  return flops / kSecondsPerDay;
}

profiles::Profile filled_profile(profiles::Profile profile, std::int64_t gpus) {
  profile.cluster = filled(std::move(profile.cluster), gpus);
  return profile;
}

Sized sized(const Model& model, std::size_t index, const Offer& offer, const SizingJob& job,
            const Found& found) {
  Sized result;
  result.offer = index;
  result.prediction = found.prediction;
  result.tokens_per_step = tokens_per_step(result.prediction.plan);
  result.shown_only = offer.shown_only;
  result.over_critical = result.tokens_per_step > kSharpness * job.run.critical_tokens;
  result.cost = run_cost(model, result.prediction, offer.profile.cluster.gpu.peak_bf16_flops,
                         job.run, offer.price, offer.profile.cluster.gpus_per_node);
  return result;
}

class Sweeper {
 public:
  Sweeper(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
          const SweepOptions& options)
      : model_(model), offers_(offers), job_(job), options_(options) {}

  std::vector<Task> all_sizes() const {
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < offers_.size(); ++i) {
      const std::vector<std::int64_t> counts =
          job_.gpus ? std::vector<std::int64_t>{*job_.gpus}
                    : gpu_counts(offers_[i].profile.cluster, job_.max_gpus);
      for (const std::int64_t gpus : counts) tasks.push_back({i, gpus, gpus == counts.back()});
    }
    return tasks;
  }

  Sweep run(const std::vector<Task>& tasks) {
    const std::vector<std::size_t> twins = twins_of(tasks);
    std::vector<std::size_t> own;  // tasks that are searched
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (twins[i] == i) own.push_back(i);
    }
    total_ = static_cast<std::int64_t>(own.size());
    std::vector<Outcome> outcomes(tasks.size());
    const std::vector<std::size_t> order = order_of(tasks, std::move(own));
    for_each_index(order.size(), static_cast<unsigned>(options_.threads), [&](std::size_t i) {
      const Task& task = tasks[order[i]];
      if (stopped() && any()) return;
      outcomes[order[i]] = tune(task);
      tell(outcomes[order[i]]);
    });
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      Outcome outcome = outcomes[twins[i]];
      if (auto* option = std::get_if<Sized>(&outcome))
        sweep_.options.push_back(offered(std::move(*option), tasks[i].offer));
      if (auto* left = std::get_if<LeftOut>(&outcome)) {
        left->offer = tasks[i].offer;
        sweep_.left_out.push_back(std::move(*left));
      }
    }
    sweep_.stopped = stopped();
    sweep_.seconds = seconds();
    return std::move(sweep_);
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }

  bool any() {
    const std::lock_guard lock(mutex_);
    return !so_far_.empty();
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  /// By task: the first whose outcome it shares, itself where there is none before.
  std::vector<std::size_t> twins_of(const std::vector<Task>& tasks) const {
    std::vector<std::string> physics;
    for (const Offer& offer : offers_) physics.push_back(physics_of_offer(offer));
    std::map<std::tuple<std::string_view, std::int64_t, bool>, std::size_t> first;
    std::vector<std::size_t> twins;
    for (const Task& task : tasks) {
      const auto key =
          std::make_tuple(std::string_view(physics[task.offer]), task.gpus, task.largest);
      twins.push_back(first.emplace(key, twins.size()).first->second);
    }
    return twins;
  }

  /// The same plan at another offer of the same machines.
  Sized offered(Sized option, std::size_t index) const {
    if (option.offer == index) return option;
    const Offer& offer = offers_[index];
    option.offer = index;
    option.shown_only = offer.shown_only;
    option.cost = run_cost(model_, option.prediction, offer.profile.cluster.gpu.peak_bf16_flops,
                           job_.run, offer.price, offer.profile.cluster.gpus_per_node);
    return option;
  }

  std::vector<std::size_t> order_of(const std::vector<Task>& tasks,
                                    std::vector<std::size_t> order) const {
    if (!options_.near_days) return order;
    std::map<std::size_t, double> distance;
    for (const std::size_t i : order) {
      const double days = rough_days(model_, offers_[tasks[i].offer], job_, tasks[i].gpus);
      distance[i] = std::abs(std::log(days / *options_.near_days));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return distance[a] < distance[b]; });
    return order;
  }

  /// Why a size is not worth a search; empty where it is.
  std::string too_slow(const Task& task) const {
    if (task.largest || job_.gpus) return {};
    const double days = rough_days(model_, offers_[task.offer], job_, task.gpus);
    const double most =
        options_.near_days ? std::max(kTooSlow * *options_.near_days, kNeverTooSlow) : kSlowestDays;
    if (days <= most) return {};
    return fmt::format("the steps alone would take about {:.2g} years", days / 365);
  }

  /// The best plan of a size, where its run would come to an end.
  Outcome tune(const Task& task) {
    Outcome outcome = best_plan(task);
    const auto* option = std::get_if<Sized>(&outcome);
    if (option == nullptr || option->cost.goodput.share >= kLeastUseful) return outcome;
    return LeftOut{task.offer, task.gpus, Lack::kTime, no_progress(option->cost.goodput)};
  }

  Outcome best_plan(const Task& task) {
    SizeCandidates candidates;
    const bool chosen = chooses_batch(job_);
    const std::vector<double> caps =
        chosen ? batch_caps(job_, task.gpus) : std::vector<double>{0.0};
    if (!is_plain(offers_[task.offer])) {
      candidates.refusal = {
          task.offer, task.gpus, Lack::kOther,
          fmt::format("the framework {} has no such plan", offers_[task.offer].profile.stack.id)};
    }
    std::set<std::optional<std::int64_t>> tried;
    for (const double cap : caps) {
      if (is_plain(offers_[task.offer])) enter_plain(task, cap, tried, candidates);
      if (candidates.best && candidates.best->cut_short) break;
      const bool mistake = candidates.refusal && candidates.refusal->lack == Lack::kBatch &&
                           *job_.fixed.global_batch >= task.gpus && !options_.fine;
      if (!searches_model_parallel(task) || mistake) continue;
      if (std::string slow = too_slow(task); !slow.empty()) {
        if (!candidates.best && !is_plain(offers_[task.offer]))
          return LeftOut{task.offer, task.gpus, Lack::kTime, std::move(slow)};
        break;
      }
      for (const std::int64_t batch :
           chosen ? shared_batches(cap, task.gpus) : std::vector<std::int64_t>{0}) {
        enter_parallel(task, batch, candidates);
      }
    }
    return outcome_of(task, std::move(candidates));
  }

  Outcome outcome_of(const Task& task, SizeCandidates candidates) {
    if (candidates.best) {
      Sized& best = *candidates.best;
      if (candidates.plain && SizeCandidates::divides(best))
        best.plain = PlainPlan{candidates.plain->prediction.plan, candidates.plain->cost.days};
      return std::move(best);
    }
    if (candidates.unfit) candidates.refusal = refusal_of(task, *candidates.unfit);
    LeftOut left = candidates.refusal.value_or(LeftOut{task.offer, task.gpus, Lack::kOther, ""});
    if (candidates.parallel_why.empty()) return left;
    const bool nothing_known = left.lack == Lack::kOther && !is_plain(offers_[task.offer]);
    if (nothing_known)
      return LeftOut{task.offer, task.gpus, Lack::kMemory, candidates.parallel_why};
    left.reason +=
        fmt::format("; model-parallel on {}: {}", offers_[task.offer].model_parallel->stack.id,
                    candidates.parallel_why);
    return left;
  }

  /// Of a batch that nothing of data parallelism fits with.
  LeftOut refusal_of(const Task& task, const Request& request) {
    try {
      Search search = plain_search(task.offer, request);
      (void)search.best(1);
      return {task.offer, task.gpus, Lack::kMemory, why_nothing_fits(search.nearest())};
    } catch (const InvalidPlan& error) {
      return {task.offer, task.gpus, Lack::kOther, error.what()};
    }
  }

  void enter_plain(const Task& task, double cap, std::set<std::optional<std::int64_t>>& tried,
                   SizeCandidates& candidates) {
    const Request& fixed = job_.fixed;
    std::vector<std::optional<std::int64_t>> batches{fixed.global_batch};
    // Micro-batch and accumulation, when both are fixed, make the batch.
    if (!fixed.global_batch && !(fixed.micro_batch && fixed.grad_accum)) {
      const double sequences =
          cap > 0 ? cap : job_.run.usual_tokens / static_cast<double>(fixed.seq_len);
      const std::int64_t unit =
          task.gpus * fixed.micro_batch.value_or(1) * fixed.grad_accum.value_or(1);
      batches.clear();
      for (const std::int64_t batch : plain_batches(sequences, unit)) batches.emplace_back(batch);
      if (cap <= 0) batches.resize(1);
    }
    for (const std::optional<std::int64_t>& batch : batches) {
      if (!tried.insert(batch).second) continue;
      Outcome outcome = tune_plain(task, batch, candidates);
      if (auto* option = std::get_if<Sized>(&outcome)) candidates.enter(std::move(*option));
      if (auto* left = std::get_if<LeftOut>(&outcome); left != nullptr && !candidates.refusal) {
        if (left->lack == Lack::kMemory && left->reason.empty()) {
          candidates.unfit = sharing_batch(task, batch);
        }
        candidates.refusal = std::move(*left);
      }
    }
  }

  void enter_parallel(const Task& task, std::int64_t batch, SizeCandidates& candidates) {
    try {
      std::optional<Sized> model_parallel = search_model_parallel(task, batch, candidates);
      if (model_parallel) candidates.enter(*std::move(model_parallel));
    } catch (const InvalidPlan& error) {
      candidates.parallel_why = error.what();
    }
  }

  /// Whether data parallelism alone is asked about and its engine knows the model.
  bool is_plain(const Offer& offer) const {
    return model_.is_plain() && !offer.profile.stack.optimizer.bucketed &&
           !features_of(job_.fixed).any();
  }
  bool searches_model_parallel(const Task& task) const {
    const Offer& offer = offers_[task.offer];
    return offer.model_parallel && (task.gpus > 1 || !is_plain(offer)) &&
           (features_of(job_.fixed).any() || !holds_sharding(job_.fixed));
  }

  /// None where there is a plan of another batch and none here is faster.
  Outcome tune_plain(const Task& task, std::optional<std::int64_t> batch,
                     const SizeCandidates& candidates) {
    const Offer& offer = offers_[task.offer];
    const auto left_out = [&](Lack lack, std::string reason) {
      return LeftOut{task.offer, task.gpus, lack, std::move(reason)};
    };
    if (std::string why = batch_contradiction(job_.fixed, task.gpus); !why.empty())
      return left_out(Lack::kBatch, std::move(why));
    const Bytes state = least_state_bytes(model_, job_, task.gpus);
    const Gpu& gpu = offer.profile.cluster.gpu;
    if (state + gpu.runtime_bytes > offer.profile.cluster.memory_bytes_per_rank(task.gpus)) {
      return left_out(
          Lack::kMemory,
          fmt::format("weights and moments alone take {} of the {} of a GPU",
                      gib(static_cast<double>(state)), gib(static_cast<double>(gpu.memory_bytes))));
    }
    if (std::string why = too_slow(task); !why.empty())
      return left_out(Lack::kTime, std::move(why));
    const Request request = sharing_batch(task, batch);
    std::optional<double> below;
    if (candidates.plain) below = seconds_of_no_gain(*candidates.plain, request.global_batch);
    try {
      return search(task, request, below);
    } catch (const InvalidPlan& error) {
      return left_out(Lack::kOther, error.what());
    }
  }

  /// The best plan that is model-parallel, where it is worth more than what there is; 0: the batch
  /// is fixed.
  std::optional<Sized> search_model_parallel(const Task& task, std::int64_t batch,
                                             SizeCandidates& candidates) {
    const Offer& offer = offers_[task.offer];
    Request request = job_.fixed;
    request.gpus = task.gpus;
    request.stack = offer.model_parallel->stack.id;
    request.coarse = !options_.fine;
    if (batch > 0) request.global_batch = batch;
    Search search = search_of(task.offer, *offer.model_parallel, request);
    std::optional<double> below;
    if (candidates.best) below = seconds_to_beat(*candidates.best, request.global_batch);
    const std::vector<Found> best = search.best(1, nullptr, below);
    {
      const std::lock_guard lock(mutex_);
      sweep_.considered += search.counts().considered;
      sweep_.simulated += search.counts().simulated;
    }
    if (best.empty()) {
      if (!candidates.best) candidates.parallel_why = why_nothing_fits(search.nearest());
      return std::nullopt;
    }
    Sized option = sized(model_, task.offer, offer, job_, best.front());
    option.cut_short = search.stopped();
    return option;
  }

  /// Of a step's token, at which a batch of `sequences` would make a faster whole run.
  double seconds_to_beat(const Sized& best, std::optional<std::int64_t> sequences) const {
    return token_seconds(best) * tokens_ratio(best, sequences) / kWorth;
  }

  /// Of a step's token, from which on a batch of `sequences` makes no shorter run. Days grow faster
  /// than ideal days, by what the production factor grows with GPU hours, but less than their
  /// square.
  double seconds_of_no_gain(const Sized& best, std::optional<std::int64_t> sequences) const {
    constexpr double kRounding = 1 + 1e-9;
    const double ratio = tokens_ratio(best, sequences);
    return token_seconds(best) * std::max(ratio, std::sqrt(ratio)) * kRounding;
  }

  static double token_seconds(const Sized& option) {
    return option.prediction.time.iteration_s / option.tokens_per_step;
  }

  /// Tokens that a run needs with the batch of `best`, over those with `sequences`.
  double tokens_ratio(const Sized& best, std::optional<std::int64_t> sequences) const {
    if (!sequences) return 1;
    const double tokens = as_double(*sequences * job_.fixed.seq_len);
    return best.cost.tokens_factor /
           tokens_factor(tokens, job_.run.free_tokens, job_.run.critical_tokens);
  }

  Request sharing_batch(const Task& task, std::optional<std::int64_t> batch) const {
    Request request = job_.fixed;
    request.gpus = task.gpus;
    request.global_batch = batch;
    return request;
  }

  /// One task is one thread's.
  SearchOptions search_options(const profiles::Profile& profile, std::int64_t gpus) {
    SearchOptions options;
    options.threads = options.looks_per_round = 1;
    options.stop = options_.stop;
    options.simulators = &simulators_;
    options.criteria.headroom = sim::asked_headroom(profile, gpus);
    return options;
  }

  Search plain_search(std::size_t offer, const Request& request) {
    return search_of(offer, offers_[offer].profile, sharing_data_alone(request));
  }

  Search search_of(std::size_t offer, const profiles::Profile& of, const Request& request) {
    Scenario scenario{"as predicted", filled_profile(of, request.gpus)};
    scenario.physics = physics_name(offer, scenario.profile);
    Space space = space_of(request, model_, scenario.profile);
    const SearchOptions options = search_options(scenario.profile, request.gpus);
    return {model_, std::move(scenario), std::move(space), options};
  }

  /// By how much nothing fits takes long to find: it is left open where a model-parallel plan may.
  Outcome search(const Task& task, const Request& request, std::optional<double> below) {
    Search search = plain_search(task.offer, request);
    const std::vector<Found> best = search.best(1, nullptr, below);
    {
      const std::lock_guard lock(mutex_);
      sweep_.considered += search.counts().considered;
      sweep_.simulated += search.counts().simulated;
    }
    if (!best.empty()) {
      Sized option = sized(model_, task.offer, offers_[task.offer], job_, best.front());
      option.cut_short = search.stopped();
      return option;
    }
    if (below) return {};
    return LeftOut{task.offer, request.gpus, Lack::kMemory,
                   searches_model_parallel(task) ? "" : why_nothing_fits(search.nearest())};
  }

  /// Of an offer, the numbers of GPUs leave different parts of racks.
  static std::string physics_name(std::size_t offer, const profiles::Profile& profile) {
    return fmt::format("{} {} {}", offer, profile.stack.id, profile.cluster.gpus_per_node);
  }

  void tell(const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (const auto* option = std::get_if<Sized>(&outcome)) so_far_.push_back(*option);
    if (options_.progress)
      options_.progress({done_, total_, sweep_.considered, seconds(), &so_far_});
  }

  const Model& model_;
  const std::vector<Offer>& offers_;
  const SizingJob& job_;
  const SweepOptions& options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  SimulatorPool simulators_;
  std::mutex mutex_;
  std::int64_t done_ = 0, total_ = 0;
  std::vector<Sized> so_far_;
  Sweep sweep_;
};

}  // namespace

profiles::Profile profile_for(const Offer& offer, const Plan& plan) {
  const bool divides = offer.model_parallel && offer.model_parallel->stack.id == plan.stack;
  return filled_profile(divides ? *offer.model_parallel : offer.profile, plan.gpus);
}

Sweep sweep(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const SweepOptions& options) {
  Sweeper sweeper(model, offers, job, options);
  return sweeper.run(sweeper.all_sizes());
}

void sweep_between(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
                   const std::vector<std::pair<std::size_t, std::int64_t>>& sizes, Sweep& result,
                   const SweepOptions& options) {
  std::vector<Task> tasks;
  for (const auto& [offer, gpus] : sizes) tasks.push_back({offer, gpus, true});
  Sweep more = Sweeper(model, offers, job, options).run(tasks);
  for (Sized& option : more.options) {
    option.between = true;
    result.options.push_back(std::move(option));
  }
  result.considered += more.considered;
  result.simulated += more.simulated;
  result.seconds += more.seconds;
  result.stopped = result.stopped || more.stopped;
}

// What `size` takes where nobody says: numbers of GPUs, the batch.

std::vector<std::int64_t> gpu_counts(const Cluster& cluster, std::int64_t most) {
  std::vector<std::int64_t> counts;
  const bool on = is_rack(cluster.gpus_per_node) && cluster.nics_per_node > 0;
  for (std::int64_t gpus = 1; (on || gpus < cluster.gpus_per_node) && gpus <= most; gpus *= 2)
    counts.push_back(gpus);
  if (on) return counts;
  for (std::int64_t gpus = cluster.gpus_per_node; gpus <= most; gpus *= 2) {
    counts.push_back(gpus);
    if (cluster.nics_per_node == 0) break;
  }
  return counts;
}

bool chooses_batch(const SizingJob& job) {
  return !job.fixed.global_batch && !job.fixed.grad_accum;
}

namespace {

Sweep tuned(const Model& model, const Offer& offer, const SizingJob& job, std::int64_t gpus,
            Strategy strategy) {
  SizingJob own = job;
  own.fixed.strategies = {strategy};
  own.gpus = gpus;
  return sweep(model, {offer}, own);
}

sim::Prediction best_plan(const Model& model, const Offer& offer, const SizingJob& job,
                          std::int64_t gpus, Strategy strategy) {
  Sweep result = tuned(model, offer, job, gpus, strategy);
  if (!result.options.empty()) return std::move(result.options.front().prediction);
  const LeftOut& why = result.left_out.front();
  throw Error(fmt::format("--compare: {} has no plan on {} GPUs of {}: {}", name_of(strategy), gpus,
                          offer.name, why.reason),
              why.lack == Lack::kMemory ? ExitCode::kInfeasible : ExitCode::kBadInput);
}

/// The fewest whole nodes, below the fleet, on which the faster strategy is no slower; each GPU has
/// as many sequences as in the fleet.
void find_whole_nodes(const Model& model, const Offer& offer, const SizingJob& job,
                      Savings& savings) {
  constexpr int kTries = 32;
  const std::int64_t node = std::min(offer.profile.cluster.gpus_per_node, savings.gpus);
  const Plan& plan = savings.faster.plan;
  savings.whole_node_gpus = savings.gpus;
  savings.whole_node_tokens_per_s = savings.faster.time.tokens_per_s;
  const double nodes = savings.equal.gpus_needed / static_cast<double>(node);
  std::int64_t gpus = std::max<std::int64_t>(1, static_cast<std::int64_t>(nodes)) * node;
  for (int i = 0; i < kTries && gpus < savings.gpus; ++i, gpus += node) {
    SizingJob own = job;
    if (!own.fixed.micro_batch || !own.fixed.grad_accum)
      own.fixed.global_batch = plan.micro_batch * plan.grad_accum * gpus;
    const Sweep result = tuned(model, offer, own, gpus, plan.strategy);
    if (result.options.empty()) continue;
    const double tokens_per_s = result.options.front().prediction.time.tokens_per_s;
    if (tokens_per_s < savings.slower.time.tokens_per_s) continue;
    savings.whole_node_gpus = gpus;
    savings.whole_node_tokens_per_s = tokens_per_s;
    return;
  }
}

}  // namespace

EqualThroughput equal_throughput(double gpus, double faster_tokens_per_gpu_s,
                                 double slower_tokens_per_gpu_s, double usd_per_gpu_hour) {
  EqualThroughput equal;
  equal.gpus_needed = gpus * slower_tokens_per_gpu_s / faster_tokens_per_gpu_s;
  equal.gpus_saved = gpus - equal.gpus_needed;
  if (usd_per_gpu_hour > 0)
    equal.usd_per_month = equal.gpus_saved * usd_per_gpu_hour * kHoursPerMonth;
  return equal;
}

Savings compare_strategies(const Model& model, const std::vector<Offer>& offers, std::size_t offer,
                           const SizingJob& job, std::int64_t gpus,
                           const std::array<Strategy, 2>& strategies) {
  const Offer& at = offers[offer];
  Savings savings;
  savings.offer = offer;
  savings.gpus = gpus;
  savings.faster = best_plan(model, at, job, gpus, strategies[0]);
  savings.slower = best_plan(model, at, job, gpus, strategies[1]);
  if (savings.faster.time.tokens_per_s < savings.slower.time.tokens_per_s)
    std::swap(savings.faster, savings.slower);
  savings.equal = equal_throughput(static_cast<double>(gpus), savings.faster.time.tokens_per_gpu_s,
                                   savings.slower.time.tokens_per_gpu_s, at.usd_per_gpu_hour);
  savings.executed_alike =
      executed_as(strategies[0], at.profile.stack) == executed_as(strategies[1], at.profile.stack);
  find_whole_nodes(model, at, job, savings);
  return savings;
}

using profiles::DataKind;

std::vector<std::string> price_names(const std::string& name, const Cluster& machine) {
  return {name, machine.id, machine.gpu.id};
}

profiles::Price price_of_cluster(const std::string& name, const Cluster& machine,
                                 const Prices& given, profiles::PriceKind kind,
                                 const profiles::PriceFile& imported) {
  for (const std::string& known : price_names(name, machine)) {
    if (const auto at = given.find(known); at != given.end())
      return {at->second, {at->second, at->second}, "", {"--price", "", ""}};
  }
  if (const auto price = imported.find(machine.id, machine.gpu.id, kind)) return *price;
  return profiles::load_prices(name)[static_cast<std::size_t>(kind)];
}

void check_price_names(const Prices& given, const std::vector<std::string>& offered) {
  std::vector<std::string> known = offered;
  for (const DataKind kind : {DataKind::kCluster, DataKind::kGpu}) {
    for (const std::string& name : profiles::shipped_names(kind)) known.push_back(name);
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (const auto& [name, usd] : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error(
        fmt::format("--price names '{}', but there is no cluster or GPU of that name; the "
                    "nearest are {}",
                    name, fmt::join(nearest_few(name, known, 3), ", ")));
  }
}

std::vector<std::string> clusters_on_offer() {
  std::vector<std::string> names = profiles::shipped_names(DataKind::kCluster);
  std::erase_if(names, [](const std::string& name) {
    return profiles::load_cluster(name).cluster.gpu.is_processor();
  });
  return names;
}

std::vector<Offer> load_offers(const std::vector<std::string>& names,
                               const std::optional<std::string>& stack,
                               const std::vector<std::string>& overrides, const Prices& prices,
                               profiles::PriceKind kind, const profiles::PriceFile& imported,
                               const NodeChanges& changes) {
  // What all clusters share is read once.
  std::map<std::string, profiles::StackFile> stacks;
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  const profiles::Uncertainty uncertainty = profiles::load_uncertainty();
  const profiles::Energy energy =
      changes.power_limit_watts ? profiles::load_energy() : profiles::Energy{};
  const profiles::StackFile dividing = profiles::load_stack(profiles::usual_model_parallel_stack());
  std::vector<Offer> offers;
  std::vector<std::string> offered;
  for (const std::string& name : names) {
    Offer& offer = offers.emplace_back();
    offer.name = name;
    const profiles::ClusterFile cluster = profiles::load_cluster(name);
    std::vector<std::string> own = overrides;
    if (changes.network_bytes_per_s && cluster.cluster.nics_per_node > 0) {
      const std::vector<std::string> network =
          profiles::node_network_overrides(cluster.cluster, *changes.network_bytes_per_s);
      own.insert(own.begin(), network.begin(), network.end());
    }
    const std::string software = stack.value_or(profiles::usual_stack(cluster.cluster));
    if (!stacks.contains(software)) stacks.emplace(software, profiles::load_stack(software));
    offer.profile = profiles::make_profile(cluster, stacks.at(software), costs, own);
    if (changes.power_limit_watts &&
        *changes.power_limit_watts < energy.drawn_watts(cluster.cluster.gpu.id).value_or(0)) {
      for (std::string& value :
           profiles::power_limit_overrides(offer.profile, energy, *changes.power_limit_watts))
        own.push_back(std::move(value));
      offer.profile = profiles::make_profile(cluster, stacks.at(software), costs, own);
    }
    offer.profile.uncertainty = uncertainty;
    if (!stack && cluster.cluster.devices_per_node == 0) {
      offer.model_parallel = profiles::make_profile(cluster, dividing, costs, own);
      offer.model_parallel->uncertainty = uncertainty;
    } else if (offer.profile.stack.parallel.features().has(Feature::kTensor)) {
      offer.model_parallel = offer.profile;
    }
    const Cluster& machine = offer.profile.cluster;
    for (std::string& known : price_names(name, machine)) offered.push_back(std::move(known));
    offer.price = price_of_cluster(name, machine, prices, kind, imported);
    offer.usd_per_gpu_hour = offer.price.usd_per_gpu_hour;
    offer.profile.cluster.usd_per_gpu_hour = offer.usd_per_gpu_hour;
    if (offer.model_parallel)
      offer.model_parallel->cluster.usd_per_gpu_hour = offer.usd_per_gpu_hour;
  }
  check_price_names(prices, offered);
  return offers;
}

bool estimate_only(const Offer& offer) {
  if (offer.profile.cost.gemm.provenance.confidence != "estimate") return false;
  const auto has = [&](const std::vector<std::string>& gpus) {
    return std::find(gpus.begin(), gpus.end(), offer.profile.cluster.gpu.id) != gpus.end();
  };
  const auto& seen = offer.profile.uncertainty.seen;
  if (const auto gpus = seen.find("gpu"); gpus != seen.end() && has(gpus->second)) return false;
  const profiles::ModelParallelRuns* model_parallel =
      offer.model_parallel
          ? profiles::model_parallel_uncertainty().runs_of(offer.model_parallel->stack.family)
          : nullptr;
  return model_parallel == nullptr || !has(model_parallel->gpus);
}

std::string price_source(const Offer& offer) {
  if (!offer.price.known()) return "";
  std::string words = offer.price.origin.source;
  if (!offer.price.origin.date.empty()) words += ", " + offer.price.origin.date;
  return words;
}

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

}  // namespace shardwright::tuner
