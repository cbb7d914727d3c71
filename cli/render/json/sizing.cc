// SPDX-License-Identifier: Apache-2.0
#include "cli/render/sizing.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/render/json/json_text.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/sizing.h"
#include "cli/render/words/why.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using tuner::Sized;

Json price_json(const SizingReport& report, const tuner::Offer& offer) {
  const profiles::Price& price = offer.price;
  if (!price.known()) return nullptr;
  return {{"kind", name_of(report.price_kind)},
          {"usd_per_gpu_hour", price.usd_per_gpu_hour},
          {"range", price.range},
          {"range_source", price.range_source},
          {"source", price.origin.source},
          {"date", price.origin.date.empty() ? Json(nullptr) : Json(price.origin.date)},
          {"age_days", or_null(profiles::age_days(price.origin.date, report.today))}};
}

Json production_json(const tuner::RunCost& cost) {
  return {{"factor", cost.production.middle},         {"half_widths", cost.production.half_widths},
          {"beyond_fit", cost.production.beyond_fit}, {"scale_factor", cost.scale_factor},
          {"tokens_factor", cost.tokens_factor},      {"whole_run_mfu", cost.whole_mfu}};
}

/// To four digits, which every machine computes alike.
Json probability_json(const std::optional<double>& probability) {
  return probability ? Json(std::round(*probability * 1e4) / 1e4) : Json(nullptr);
}

Json plain_json(const std::optional<tuner::PlainPlan>& plain) {
  if (!plain) return nullptr;
  return {{"strategy", name_of(plain->plan.strategy)},
          {"stack", plain->plan.stack},
          {"plan_words", plan_words(plain->plan)},
          {"days", plain->days}};
}

Json published_json(const SizingReport& report) {
  Json list = Json::array();
  for (const profiles::WholeRun& run : report.published) {
    list.push_back({{"id", run.id},
                    {"tokens", run.tokens},
                    {"gpu_hours", run.gpu_hours},
                    {"gpu", run.gpu},
                    {"gpus", or_null(run.gpus)},
                    {"source", run.source}});
  }
  return list;
}

Json option_json(const SizingReport& report, const Sized& option) {
  const sim::TimePrediction& time = option.prediction.time;
  const tuner::Offer& offer = report.offer_of(option);
  const tuner::Goal& goal = report.goal;
  const tuner::RunCost& cost = option.cost;
  const tuner::Misses misses = tuner::misses_of(option, goal);
  const auto met = [](bool asked, bool is) { return asked ? Json(is) : Json(nullptr); };
  return {{"cluster", offer.name},
          {"gpu", offer.profile.cluster.gpu.id},
          {"gpus", option.gpus()},
          {"plan", plan_to_json(option.prediction.plan)},
          {"plan_words", plan_words(option.prediction.plan)},
          {"days", cost.days},
          {"days_interval", cost.days_interval},
          {"interval_level", cost.level},
          {"cost_usd", or_null(cost.usd)},
          {"cost_usd_interval", or_null(cost.usd_interval)},
          {"gpu_hours", cost.gpu_hours},
          {"energy", energy_json(report.energy, offer.profile.cluster.gpu.id, cost.gpu_hours)},
          {"step_only", {{"days", cost.ideal_days}, {"cost_usd", or_null(cost.ideal_usd)}}},
          {"production", production_json(cost)},
          {"usd_per_gpu_hour",
           offer.usd_per_gpu_hour > 0 ? Json(offer.usd_per_gpu_hour) : Json(nullptr)},
          {"price_source", tuner::price_source(offer)},
          {"price", price_json(report, offer)},
          {"tokens_per_s", time.tokens_per_s},
          {"mfu", time.mfu},
          {"iteration_time_s", time.iteration_s},
          {"iteration_time_interval_s", {time.interval_s[0], time.interval_s[1]}},
          {"tokens_per_step", option.tokens_per_step},
          {"over_critical_batch", option.over_critical},
          {"estimate_only", tuner::estimate_only(offer)},
          {"shown_only", option.shown_only},
          {"data_parallel", plain_json(option.plain)},
          {"goodput",
           {{"useful_share", cost.goodput.share},
            {"mtbf_s", cost.goodput.mtbf_s},
            {"checkpoint_s", cost.goodput.checkpoint_s},
            {"checkpoint_write_s", cost.goodput.write_s},
            {"checkpoint_interval_s", cost.goodput.interval_s}}},
          {"memory_total_bytes", option.prediction.memory.total_bytes},
          {"extrapolated", option.prediction.extrapolated},
          {"regime", name_of(option.prediction.regime)},
          {"host", host_json(option.prediction)},
          {"probability",
           {{"deadline", probability_json(misses.deadline)},
            {"budget", probability_json(misses.budget)}}},
          {"meets",
           {{"deadline", met(goal.deadline_days.has_value(), tuner::meets_deadline(option, goal))},
            {"budget", met(goal.budget_usd.has_value(), tuner::meets_budget(option, goal))},
            {"safely",
             met(goal.deadline_days || goal.budget_usd, tuner::meets_safely(option, goal))}}}};
}

Json option_or_null(const SizingReport& report, const std::optional<std::size_t>& index) {
  return index ? option_json(report, report.option(*index)) : Json(nullptr);
}

Json scaling_json(const SizingReport& report) {
  if (!report.scaling || !report.scaling->knee) return nullptr;
  const tuner::Scaling& scaling = *report.scaling;
  const Sized& knee = report.option(*scaling.knee);
  Json growth = Json::array();
  for (const tuner::Growth& step : scaling.growth) {
    growth.push_back({{"from_gpus", report.option(step.from).gpus()},
                      {"to_gpus", report.option(step.to).gpus()},
                      {"speedup", step.speedup},
                      {"ideal", step.ideal},
                      {"pays", step.pays()}});
  }
  Json causes = nullptr;
  if (scaling.causes) {
    const tuner::Causes& c = *scaling.causes;
    causes = {{"exposed_communication", c.communication},
              {"compute", c.compute},
              {"host", c.host},
              {"optimizer", c.optimizer},
              {"tokens", c.tokens},
              {"failures", c.failures},
              {"latency_of_step", c.latency}};
  }
  return {{"cluster", report.offer_of(knee).name}, {"gpus", knee.gpus()},
          {"growth", std::move(growth)},           {"stops_because", std::move(causes)},
          {"batch_limit", scaling.batch_limit},    {"why", scaling_sentences(report)}};
}

Json savings_json(const SizingReport& report) {
  if (!report.savings) return nullptr;
  const tuner::Savings& savings = *report.savings;
  const tuner::Offer& offer = report.offers[savings.offer];
  const auto strategy = [](const sim::Prediction& p) {
    return Json{{"strategy", name_of(p.plan.strategy)},
                {"tokens_per_gpu_s", p.time.tokens_per_gpu_s},
                {"iteration_time_s", p.time.iteration_s},
                {"plan", plan_to_json(p.plan)}};
  };
  return {{"cluster", offer.name},
          {"gpus", savings.gpus},
          {"faster", strategy(savings.faster)},
          {"slower", strategy(savings.slower)},
          {"gpus_needed", savings.equal.gpus_needed},
          {"gpus_saved", savings.equal.gpus_saved},
          {"whole_node_gpus_needed", savings.whole_node_gpus},
          {"usd_per_gpu_hour",
           offer.usd_per_gpu_hour > 0 ? Json(offer.usd_per_gpu_hour) : Json(nullptr)},
          {"hours_per_month", tuner::kHoursPerMonth},
          {"usd_per_month", or_null(savings.equal.usd_per_month)},
          {"computation", savings_lines(report)}};
}

Json break_even_json(const SizingReport& report) {
  Json list = Json::array();
  for (const tuner::BreakEven& entry : report.break_even) {
    const tuner::Offer& offer = report.offers[entry.offer];
    list.push_back(
        {{"cluster", offer.name},
         {"gpus", report.option(entry.option).gpus()},
         {"break_even_usd_per_gpu_hour", entry.usd_per_gpu_hour},
         {"distance", or_null(entry.distance)},
         {"shown_only", offer.shown_only},
         {"usd_per_gpu_hour", offer.price.known() ? Json(offer.usd_per_gpu_hour) : Json(nullptr)},
         {"price", price_json(report, offer)}});
  }
  return list;
}

Json reached_json(const profiles::Production& production) {
  Json reached = Json::object();
  for (const auto& [generation, quartiles] : production.reached)
    reached[generation] = {{"n", quartiles.n}, {"mfu_quartiles", quartiles.mfu}};
  return reached;
}

}  // namespace

Json sizing_json(const SizingReport& report) {
  Json document{{"schema", "shardwright.sizing/1.0"},
                {"options", Json::array()},
                {"pareto", Json::array()},
                {"recommended", option_or_null(report, report.choice.recommended)},
                {"recommended_is_safe", report.choice.safe},
                {"smallest", option_or_null(report, report.choice.smallest)},
                {"smallest_safe", option_or_null(report, report.choice.smallest_safe)},
                {"in_the_middle", option_or_null(report, report.choice.in_the_middle)},
                {"break_even", break_even_json(report)},
                {"savings", savings_json(report)},
                {"cheapest", option_or_null(report, report.choice.cheapest)},
                {"fastest", option_or_null(report, report.choice.fastest)},
                {"cheapest_in_time", option_or_null(report, report.choice.cheapest_in_time)},
                {"fastest_in_budget", option_or_null(report, report.choice.fastest_in_budget)},
                {"beyond_critical_batch", option_or_null(report, report.choice.beyond_critical)},
                {"knee", scaling_json(report)},
                {"left_out", Json::array()},
                {"summary", summary_sentences(report)},
                {"words", recommendation_sentences(report)},
                {"best_of_each", Json::array()},
                {"published", published_json(report)},
                {"assumptions", assumption_sentences(report)}};
  for (const Sized& option : report.sweep.options)
    document["options"].push_back(option_json(report, option));
  for (const std::size_t i : report.best_of_each) {
    Json option = option_json(report, report.option(i));
    option["recommended"] = report.choice.recommended == i;
    document["best_of_each"].push_back(std::move(option));
  }
  for (const std::size_t i : report.choice.pareto)
    document["pareto"].push_back(option_json(report, report.option(i)));
  for (const tuner::LeftOut& left : report.sweep.left_out) {
    document["left_out"].push_back({{"cluster", report.offers[left.offer].name},
                                    {"gpus", left.gpus},
                                    {"reason", left.reason}});
  }
  document["considered"] = report.sweep.considered;
  document["simulated"] = report.sweep.simulated;
  document["seconds"] = report.sweep.seconds;
  document["interrupted"] = report.sweep.stopped;
  document["whole_run_mfu_reached"] = reached_json(report.job.run.production);
  std::optional<double> taken_every_h = report.job.run.preemption_node_hours;
  if (*taken_every_h <= 0) taken_every_h.reset();
  document["inputs"] = {{"model", report.model_name},
                        {"tokens", report.job.run.tokens},
                        {"seq_len", report.job.fixed.seq_len},
                        {"usual_length", or_null(report.usual_length)},
                        {"global_batch", or_null(report.job.fixed.global_batch)},
                        {"critical_tokens_per_step", report.job.run.critical_tokens},
                        {"critical_tokens_range", report.job.run.critical_range},
                        {"deadline_days", or_null(report.goal.deadline_days)},
                        {"budget_usd", or_null(report.goal.budget_usd)},
                        {"price_kind", name_of(report.price_kind)},
                        {"max_gpus", report.job.max_gpus},
                        {"mtbf_gpu_hours", report.job.run.mtbf_gpu_hours},
                        {"preemption_node_hours", or_null(taken_every_h)},
                        {"restart_s", report.job.run.restart_s},
                        {"set", report.overrides}};
  return document;
}

}  // namespace shardwright::cli
