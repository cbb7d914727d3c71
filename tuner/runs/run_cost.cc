// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/run_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "profiles/operations.h"
#include "sim/core/base/check.h"
#include "sim/core/base/numbers.h"

namespace shardwright::tuner {

double young_interval_s(double checkpoint_s, double mtbf_s) {
  return std::sqrt(2 * checkpoint_s * mtbf_s);
}

double daly_interval_s(double checkpoint_s, double mtbf_s) {
  if (checkpoint_s >= 2 * mtbf_s) return mtbf_s;
  const double half = checkpoint_s / (2 * mtbf_s);
  return young_interval_s(checkpoint_s, mtbf_s) * (1 + std::sqrt(half) / 3 + half / 9) -
         checkpoint_s;
}

double goodput_at(double interval_s, double checkpoint_s, double restart_s, double mtbf_s) {
  const double x = interval_s / mtbf_s;
  return x / (portable_exp(restart_s / mtbf_s) * portable_expm1(x + checkpoint_s / mtbf_s));
}

Bytes checkpoint_bytes(const Model& model, const Plan& plan) {
  return count_parameters(model).total(model.layers) *
         (bytes_of(plan.master_dtype) + 2 * bytes_of(plan.moment_dtype));
}

Goodput goodput_of(const Outages& outages, std::int64_t gpus) {
  SHARDWRIGHT_CHECK(outages.mtbf_gpu_hours > 0 && outages.checkpoint_s > 0 && gpus > 0,
                    "mtbf {} h, checkpoint {} s, {} GPUs", outages.mtbf_gpu_hours,
                    outages.checkpoint_s, gpus);
  Goodput goodput;
  goodput.mtbf_s = outages.mtbf_gpu_hours * 3600 / static_cast<double>(gpus);
  goodput.checkpoint_s = outages.checkpoint_s;
  goodput.interval_s =
      std::max(outages.least_interval_s, daly_interval_s(outages.checkpoint_s, goodput.mtbf_s));
  goodput.share =
      goodput_at(goodput.interval_s, outages.checkpoint_s, outages.restart_s, goodput.mtbf_s);
  return goodput;
}

namespace {

constexpr double kDaySeconds = 86400;
constexpr double kHoursPerDay = 24;
constexpr double kLeastShare = 1e-3;  // of useful time: below it a run has no end to speak of

Goodput goodput_on(const Model& model, const Plan& plan, std::int64_t gpus,
                   const RunConditions& conditions, double mtbf_gpu_hours) {
  const double bytes = static_cast<double>(checkpoint_bytes(model, plan));
  double rate = conditions.gpu_bytes_per_s * static_cast<double>(gpus);
  if (conditions.storage_bytes_per_s > 0) rate = std::min(rate, conditions.storage_bytes_per_s);
  const double write_s = conditions.checkpoint_s.value_or(bytes / rate);
  double stall_s = write_s;
  if (conditions.stall_bytes_per_s > 0 && !conditions.checkpoint_s)
    stall_s = std::min(write_s, bytes / (conditions.stall_bytes_per_s * static_cast<double>(gpus)));
  Goodput goodput = goodput_of({mtbf_gpu_hours, conditions.restart_s, stall_s,
                                std::max(conditions.least_interval_s, write_s - stall_s)},
                               gpus);
  goodput.write_s = write_s;
  return goodput;
}

std::int64_t usual_gpus(const RunConditions& conditions) {
  return std::max<std::int64_t>(1, std::llround(conditions.production.usual_gpus));
}

/// Failures on the plan's GPUs over those of published trainings, which the factor holds already.
double scale_factor(const Model& model, const Plan& plan, const RunConditions& conditions,
                    std::int64_t gpus_per_node) {
  const auto share = [&](std::int64_t gpus, double mtbf_gpu_hours) {
    return std::max(kLeastShare, goodput_on(model, plan, gpus, conditions, mtbf_gpu_hours).share);
  };
  const double own = share(plan.gpus, interrupted_every_gpu_hours(conditions, gpus_per_node));
  // Without a fitted factor failures are all that is known.
  if (!conditions.production.known()) return 1 / own;
  return share(usual_gpus(conditions), conditions.mtbf_gpu_hours) / own;
}

/// Logarithms of what the fewest and the most interruptions that operators report make of days.
std::array<double, 2> failure_widths(const Model& model, const Plan& plan,
                                     const RunConditions& conditions, std::int64_t gpus_per_node,
                                     const Goodput& own, double expected) {
  const auto with = [&](double mtbf_gpu_hours) {
    if (mtbf_gpu_hours <= 0) return 0.0;
    RunConditions other = conditions;
    other.mtbf_gpu_hours = mtbf_gpu_hours;
    return portable_log(scale_factor(model, plan, other, gpus_per_node) / expected);
  };
  const auto [least, most] = conditions.mtbf_range;
  double worst = with(least);
  if (conditions.least_useful_share > 0)
    worst = std::min(worst, portable_log(own.share / conditions.least_useful_share));
  return {std::min(0.0, with(most)), std::max(0.0, worst)};
}

void add_money(RunCost& cost, std::int64_t gpus, const profiles::Price& price) {
  if (!price.known()) return;
  const double usd = price.usd_per_gpu_hour;
  cost.ideal_usd = cost.ideal_days * kHoursPerDay * static_cast<double>(gpus) * usd;
  cost.usd = cost.gpu_hours * usd;
  std::array<double, 2>& ends = cost.usd_interval.emplace();
  for (std::size_t end = 0; end < 2; ++end) {
    const double time = portable_log(cost.days_interval[end] / cost.days);
    const double asked = price.range[end] > 0 ? portable_log(price.range[end] / usd) : 0;
    const bool counts = end == 0 ? asked < 0 : asked > 0;
    const double width = counts ? std::sqrt(time * time + asked * asked) : std::abs(time);
    ends[end] = *cost.usd * portable_exp(end == 0 ? -width : width);
  }
}

/// Batches grow with tokens: a training on many more took one that is too large here.
double batch_of_trainings(const Model& model, double tokens) {
  double most = 0;
  for (const profiles::WholeRun& run : trainings_of(model, profiles::shipped_trainings())) {
    if (run.tokens <= 2 * tokens && run.global_batch_tokens)
      most = std::max(most, *run.global_batch_tokens);
  }
  return most;
}

}  // namespace

double interrupted_every_gpu_hours(const RunConditions& conditions, std::int64_t gpus_per_node) {
  if (conditions.preemption_node_hours <= 0) return conditions.mtbf_gpu_hours;
  const double taken_every = conditions.preemption_node_hours * static_cast<double>(gpus_per_node);
  return 1 / (1 / conditions.mtbf_gpu_hours + 1 / taken_every);
}

RunConditions usual_conditions(const Model& model, double tokens, std::int64_t seq_len) {
  const profiles::Operations operations = profiles::load_operations();
  RunConditions conditions;
  conditions.tokens = tokens;
  const CriticalTokens critical =
      critical_range(profiles::load_critical_batch(), model, tokens, operations);
  conditions.critical_tokens = critical.middle;
  conditions.critical_range = critical.range;
  conditions.critical_words = critical.words;
  conditions.own_published_tokens = batch_of_trainings(model, tokens);
  conditions.usual_tokens =
      std::max(usual_batch_tokens(critical.middle, seq_len), conditions.own_published_tokens);
  conditions.published_tokens =
      std::max(critical.middle * critical.published, conditions.own_published_tokens);
  conditions.free_tokens = conditions.published_tokens;
  conditions.production = profiles::load_production();
  conditions.mtbf_gpu_hours = operations.mtbf_gpu_hours;
  conditions.mtbf_range = {operations.least_mtbf_gpu_hours, operations.most_mtbf_gpu_hours};
  conditions.least_useful_share = operations.least_useful_share;
  conditions.restart_s = operations.restart_s;
  conditions.gpu_bytes_per_s = operations.gpu_bytes_per_s;
  conditions.storage_bytes_per_s = operations.storage_bytes_per_s;
  conditions.stall_bytes_per_s = operations.stall_bytes_per_s;
  conditions.least_interval_s = operations.least_interval_s;
  return conditions;
}

double usual_batch_tokens(double critical_tokens, std::int64_t seq_len) {
  const double length = static_cast<double>(seq_len);
  const auto sequences =
      static_cast<std::uint64_t>(std::max(1.0, kUsualOverhead * critical_tokens / length));
  return static_cast<double>(std::bit_floor(sequences)) * length;
}

double tokens_factor(double tokens_per_step, double free, double critical) {
  if (critical <= 0) return 1;
  return std::max(1.0, (1 + tokens_per_step / critical) / (1 + free / critical));
}

std::array<double, 2> tokens_of_tiny_steps(double tokens_per_step,
                                           const RunConditions& conditions) {
  const auto [least, most] = conditions.critical_range;
  if (least <= 0) return {1, 1};
  return {1 + tokens_per_step / most, 1 + tokens_per_step / least};
}

double probability_above(double limit, double middle, const std::array<double, 2>& interval,
                         double level) {
  const double distance = portable_log(limit / middle);
  const double half_width = std::abs(portable_log(interval[distance < 0 ? 0 : 1] / middle));
  if (half_width <= 0) return distance < 0 ? 1 : 0;
  return (1 - std::erf(distance / half_width * profiles::normal_half_width(level) /
                       std::numbers::sqrt2)) /
         2;
}

RunCost run_cost(const Model& model, const sim::Prediction& prediction, double peak_flops,
                 const RunConditions& conditions, const profiles::Price& price,
                 std::int64_t gpus_per_node) {
  const Plan& plan = prediction.plan;
  const sim::TimePrediction& time = prediction.time;
  RunCost cost;
  cost.goodput = goodput_on(model, plan, plan.gpus, conditions,
                            interrupted_every_gpu_hours(conditions, gpus_per_node));
  const double half_width = profiles::step_half_width_of(
      conditions.production, portable_log(time.interval_s[1] / time.interval_s[0]) / 2,
      time.added_half_widths);
  cost.level = conditions.production.known() ? conditions.production.level : time.interval_level;
  cost.ideal_days = conditions.tokens / time.tokens_per_s / kDaySeconds;
  const double ideal_hours = cost.ideal_days * kHoursPerDay * static_cast<double>(plan.gpus);
  // Of experts those count that a token meets.
  const auto active = static_cast<double>(count_parameters(model).active(model.layers));
  cost.production =
      profiles::factor_of(conditions.production, active, peak_flops, ideal_hours, half_width);
  if (!conditions.production.known()) cost.production.half_widths = {half_width, half_width};
  cost.scale_factor = scale_factor(model, plan, conditions, gpus_per_node);
  cost.tokens_factor =
      tokens_factor(tokens_per_step(plan), conditions.free_tokens, conditions.critical_tokens);
  cost.days = cost.ideal_days * cost.tokens_factor * cost.production.middle * cost.scale_factor;
  const auto failures =
      failure_widths(model, plan, conditions, gpus_per_node, cost.goodput, cost.scale_factor);
  for (std::size_t end = 0; end < 2; ++end) {
    const double width = cost.production.half_widths[end];
    const double both = std::sqrt(width * width + failures[end] * failures[end]);
    cost.days_interval[end] = cost.days * portable_exp(end == 0 ? -both : both);
  }
  cost.gpu_hours = cost.days * kHoursPerDay * static_cast<double>(plan.gpus);
  cost.whole_mfu = 6 * active * conditions.tokens / (cost.gpu_hours * 3600 * peak_flops);
  add_money(cost, plan.gpus, price);
  return cost;
}

double expected_loss(const Model& model, double tokens, const profiles::Operations& constants) {
  const ParameterCounts counts = count_parameters(model);
  const std::int64_t of_layers =
      counts.all_layers > 0 ? counts.all_layers : model.layers * counts.layer();
  const auto parameters = static_cast<double>(of_layers + counts.final_norm);
  const double by_size = portable_pow(constants.parameters_c / parameters,
                                      constants.parameters_exponent / constants.tokens_exponent);
  return portable_pow(by_size + constants.tokens_c / tokens, constants.tokens_exponent);
}

double critical_tokens(const profiles::BatchLaw& law, const Model& model, double tokens,
                       const profiles::Operations& constants) {
  if (!law.by_loss) return law.coefficient * portable_pow(tokens, law.tokens_exponent);
  return constants.batch_c /
         portable_pow(expected_loss(model, tokens, constants), 1 / constants.batch_exponent);
}

double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants) {
  return critical_tokens(profiles::load_critical_batch().chosen(), model, tokens, constants);
}

CriticalTokens critical_range(const profiles::CriticalBatch& fitted, const Model& model,
                              double tokens, const profiles::Operations& constants) {
  const profiles::BatchLaw& chosen = fitted.chosen();
  CriticalTokens result;
  result.middle = critical_tokens(chosen, model, tokens, constants);
  result.range = {result.middle, result.middle};
  result.published = chosen.greatest_share;
  result.words = chosen.words;
  for (const profiles::BatchLaw& law : fitted.laws) {
    if (law.id == chosen.id || law.beyond > 0) continue;
    const double other = critical_tokens(law, model, tokens, constants);
    result.range = {std::min(result.range[0], other), std::max(result.range[1], other)};
    result.words += "; " + law.words;
  }
  return result;
}

std::vector<profiles::WholeRun> trainings_of(const Model& model,
                                             std::vector<profiles::WholeRun> runs) {
  std::erase_if(runs, [&](const profiles::WholeRun& run) {
    if (!run.not_scorable.empty() || !run.model) return true;
    const Model& other = *run.model;
    return other.layers != model.layers || other.hidden != model.hidden ||
           other.heads != model.heads || other.kv_heads != model.kv_heads ||
           other.ffn != model.ffn || other.vocab != model.vocab ||
           other.experts.count != model.experts.count ||
           other.experts.per_token != model.experts.per_token ||
           other.experts.ffn != model.experts.ffn;
  });
  return runs;
}

}  // namespace shardwright::tuner
