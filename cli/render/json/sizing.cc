// SPDX-License-Identifier: Apache-2.0
#include "cli/render/sizing.h"

#include <nlohmann/json.hpp>

#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using tuner::Sized;

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json option_json(const SizingReport& report, const Sized& option) {
  const sim::TimePrediction& time = option.prediction.time;
  const tuner::Offer& offer = report.offer_of(option);
  const tuner::Goal& goal = report.goal;
  const double low = option.days_interval[0] / option.days;
  const double high = option.days_interval[1] / option.days;
  const auto met = [](bool asked, bool is) { return asked ? Json(is) : Json(nullptr); };
  return {{"cluster", offer.name},
          {"gpu", offer.profile.cluster.gpu.id},
          {"gpus", option.gpus()},
          {"plan", plan_to_json(option.prediction.plan)},
          {"days", option.days},
          {"days_interval", {option.days_interval[0], option.days_interval[1]}},
          {"interval_level", time.interval_level},
          {"cost_usd", or_null(option.usd)},
          {"cost_usd_interval",
           option.usd ? Json{*option.usd * low, *option.usd * high} : Json(nullptr)},
          {"usd_per_gpu_hour",
           offer.usd_per_gpu_hour > 0 ? Json(offer.usd_per_gpu_hour) : Json(nullptr)},
          {"price_source", report.price_sources[option.offer]},
          {"tokens_per_s", time.tokens_per_s},
          {"mfu", time.mfu},
          {"iteration_time_s", time.iteration_s},
          {"tokens_per_step", option.tokens_per_step},
          {"over_critical_batch", option.over_critical},
          {"goodput",
           {{"useful_share", option.goodput.share},
            {"mtbf_s", option.goodput.mtbf_s},
            {"checkpoint_s", option.goodput.checkpoint_s},
            {"checkpoint_interval_s", option.goodput.interval_s}}},
          {"memory_total_bytes", option.prediction.memory.total_bytes},
          {"extrapolated", option.prediction.extrapolated},
          {"meets",
           {{"deadline", met(goal.deadline_days.has_value(), tuner::meets_deadline(option, goal))},
            {"budget", met(goal.budget_usd.has_value(), tuner::meets_budget(option, goal))}}}};
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

}  // namespace

Json sizing_json(const SizingReport& report) {
  Json document{{"schema", "shardwright.sizing/1.0"},
                {"options", Json::array()},
                {"pareto", Json::array()},
                {"recommended", option_or_null(report, report.choice.recommended)},
                {"savings", savings_json(report)},
                {"cheapest", option_or_null(report, report.choice.cheapest)},
                {"fastest", option_or_null(report, report.choice.fastest)},
                {"cheapest_in_time", option_or_null(report, report.choice.cheapest_in_time)},
                {"fastest_in_budget", option_or_null(report, report.choice.fastest_in_budget)},
                {"beyond_critical_batch", option_or_null(report, report.choice.beyond_critical)},
                {"knee", scaling_json(report)},
                {"left_out", Json::array()},
                {"words", recommendation_sentences(report)},
                {"assumptions", assumption_sentences(report)}};
  for (const Sized& option : report.sweep.options)
    document["options"].push_back(option_json(report, option));
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
  document["inputs"] = {{"model", report.model_name},
                        {"tokens", report.job.tokens},
                        {"seq_len", report.job.fixed.seq_len},
                        {"global_batch", or_null(report.job.fixed.global_batch)},
                        {"critical_tokens_per_step", report.job.critical_tokens},
                        {"deadline_days", or_null(report.goal.deadline_days)},
                        {"budget_usd", or_null(report.goal.budget_usd)},
                        {"max_gpus", report.job.max_gpus},
                        {"mtbf_gpu_hours", report.job.mtbf_gpu_hours},
                        {"restart_s", report.job.restart_s},
                        {"set", report.overrides}};
  return document;
}

}  // namespace shardwright::cli
