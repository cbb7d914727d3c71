// SPDX-License-Identifier: Apache-2.0
#include "tuner/sizing.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <variant>

#include "sim/core/error.h"
#include "sim/core/rack.h"
#include "sim/core/worker_pool.h"
#include "sim/doubt/headroom.h"
#include "tuner/contest.h"
#include "tuner/divided_search.h"
#include "tuner/search.h"
#include "tuner/space_limits.h"

namespace shardwright::tuner {

namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kSharpness = 1.25;  // of the critical batch: the fit is no better than that

constexpr double kTooSlow = 20;        // times the deadline
constexpr double kNeverTooSlow = 365;  // days
constexpr double kSlowestDays = 3650;  // without a deadline
constexpr double kLeastUseful = 0.01;  // share of a run's time, below which it never ends

struct Task {
  std::size_t offer = 0;
  std::int64_t gpus = 0;
  bool largest = false;  // that is tried of this offer
};

/// All of an offer that a prediction depends on: clusters of equal text differ in name and price.
std::string physics_of(const Offer& offer) {
  profiles::Profile profile = offer.profile;
  profile.cluster.usd_per_gpu_hour = 0;
  std::string text = profile.stack.id + " " + profile.cluster.gpu.id;
  if (offer.divided) text += " " + offer.divided->stack.id;
  const profiles::FieldList fields = profiles::fields_of(profile);
  for (const profiles::Field& field : fields.fields())
    text.append(" ").append(profiles::json_text(field));
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

std::string gib(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / kGiB);
}

/// Why `gpus` cannot share the batch that the user fixed; empty when they can.
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

/// Master weights and moments are there on every plan, at best shared by all GPUs.
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

/// Why a run that is interrupted so often gets nowhere.
std::string no_progress(const Goodput& goodput) {
  return fmt::format(
      "an interruption every {:.3g} hours, with {:.3g} s for a checkpoint, leaves less than {:.0f} "
      "% "
      "of the time useful",
      goodput.mtbf_s / 3600, goodput.checkpoint_s, 100 * kLeastUseful);
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
    for (const Offer& offer : offers_) physics.push_back(physics_of(offer));
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
    Outcome plain = LeftOut{task.offer, task.gpus, Lack::kOther, "its engine predicts no experts"};
    if (is_plain(offers_[task.offer])) plain = tune_plain(task);
    if (!is_divided(task) || is_odd_batch(plain, task.gpus)) return plain;
    if (std::string slow = too_slow(task); !slow.empty()) {
      const bool said = std::holds_alternative<LeftOut>(plain) && is_plain(offers_[task.offer]);
      return said ? plain : LeftOut{task.offer, task.gpus, Lack::kTime, std::move(slow)};
    }
    const auto* option = std::get_if<Sized>(&plain);
    if (option != nullptr && option->cut_short) return plain;
    std::optional<Sized> divided;
    std::string why;
    try {
      divided = search_divided(task, option, why);
    } catch (const Error& error) {
      why = error.what();
    }
    if (divided) return *std::move(divided);
    if (auto* left = std::get_if<LeftOut>(&plain)) {
      const bool nothing_known = left->lack == Lack::kOther && !is_plain(offers_[task.offer]);
      if (nothing_known) return LeftOut{task.offer, task.gpus, Lack::kMemory, why};
      left->reason +=
          fmt::format("; divided on {}: {}", offers_[task.offer].divided->stack.id, why);
    }
    return plain;
  }

  /// Whether data parallelism alone is asked about and its engine knows the model.
  bool is_plain(const Offer& offer) const {
    return !model_.is_mixture() && !offer.profile.stack.parallel.always &&
           !asks_for_division(job_.fixed);
  }
  /// A batch that the GPUs do not share evenly, though there is a sequence for each: a mistake.
  bool is_odd_batch(const Outcome& plain, std::int64_t gpus) const {
    const auto* left = std::get_if<LeftOut>(&plain);
    return left != nullptr && left->lack == Lack::kBatch && *job_.fixed.global_batch >= gpus;
  }
  bool is_divided(const Task& task) const {
    return offers_[task.offer].divided && task.gpus > 1 &&
           (asks_for_division(job_.fixed) || !asks_for_plain(job_.fixed));
  }

  Outcome tune_plain(const Task& task) {
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
    Request request = job_.fixed;
    request.gpus = task.gpus;
    // Micro-batch and accumulation, when both are fixed, make the batch.
    const bool batch_is_fixed = request.micro_batch && request.grad_accum;
    if (!request.global_batch && !batch_is_fixed)
      request.global_batch = usual_global_batch(job_, task.gpus);
    try {
      return search(task.offer, request);
    } catch (const Error& error) {
      return left_out(Lack::kOther, error.what());
    }
  }

  /// The best divided plan where it is the better choice than `plain`; `why` it is not.
  std::optional<Sized> search_divided(const Task& task, const Sized* plain, std::string& why) {
    const Offer& offer = offers_[task.offer];
    Request request = job_.fixed;
    request.gpus = task.gpus;
    const profiles::Profile profile = filled_profile(*offer.divided, task.gpus);
    request.stack = profile.stack.id;
    request.coarse = true;
    if (!request.global_batch && !request.grad_accum)
      request.global_batch = shared_batch(job_.run.critical_tokens, request.seq_len, task.gpus);
    // A plain plan whose batch had to grow trains another run.
    const bool comparable = plain != nullptr && !plain->over_critical;
    const std::vector<Scenario> scenarios{{"as predicted", profile}};
    SearchOptions options;
    options.threads = 1;
    options.stop = options_.stop;
    options.criteria.headroom = sim::asked_headroom(profile, request.gpus);
    const Extent extent = is_plain(offer) ? Extent::kDivided : Extent::kAll;
    const DividedSpace space = divided_space(request, model_, profile, extent);
    DividedSearch search(model_, scenarios, space, options);
    std::optional<double> below;
    if (comparable) below = plain->prediction.time.iteration_s / plain->tokens_per_step;
    const std::vector<Found> best = search.best(1, below);
    {
      const std::lock_guard lock(mutex_);
      sweep_.considered += search.counts().considered;
      sweep_.simulated += search.counts().simulated;
    }
    if (best.empty()) {
      why = why_nothing_fits(search.nearest());
      return std::nullopt;
    }
    const Found& found = best.front();
    if (below &&
        !takes_over(found.prediction, found.score, plain->prediction, *below, Objective::kTime)) {
      return std::nullopt;
    }
    Sized option = sized(model_, task.offer, offer, job_, found);
    option.cut_short = search.stopped();
    return option;
  }

  Outcome search(std::size_t index, const Request& request) {
    const Offer& offer = offers_[index];
    const profiles::Profile profile = filled_profile(offer.profile, request.gpus);
    const std::vector<Scenario> scenarios{{"as predicted", profile}};
    SearchOptions options;
    options.threads = 1;
    options.stop = options_.stop;
    options.criteria.headroom = sim::asked_headroom(profile, request.gpus);
    const Space space = without_misfits(space_of(request, model_, profile), model_, profile);
    Search search(model_, scenarios, space, options);
    const std::vector<Found> best = search.best(1);
    {
      const std::lock_guard lock(mutex_);
      sweep_.considered += search.counts().considered;
      sweep_.simulated += search.counts().simulated;
    }
    if (!best.empty()) {
      Sized option = sized(model_, index, offer, job_, best.front());
      option.cut_short = search.stopped();
      return option;
    }
    return LeftOut{index, request.gpus, Lack::kMemory, why_nothing_fits(search.nearest())};
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
  std::mutex mutex_;
  std::int64_t done_ = 0, total_ = 0;
  std::vector<Sized> so_far_;
  Sweep sweep_;
};

}  // namespace

profiles::Profile profile_for(const Offer& offer, const Plan& plan) {
  const bool divides = offer.divided && offer.divided->stack.id == plan.stack;
  return filled_profile(divides ? *offer.divided : offer.profile, plan.gpus);
}

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

std::int64_t usual_global_batch(const SizingJob& job, std::int64_t gpus) {
  const auto usual =
      static_cast<std::int64_t>(usual_batch_tokens(job.run.critical_tokens, job.fixed.seq_len)) /
      job.fixed.seq_len;
  const std::int64_t unit =
      gpus * job.fixed.micro_batch.value_or(1) * job.fixed.grad_accum.value_or(1);
  return std::max(usual / unit, std::int64_t{1}) * unit;
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

}  // namespace shardwright::tuner
