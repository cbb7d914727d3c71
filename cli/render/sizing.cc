// SPDX-License-Identifier: Apache-2.0
#include "cli/render/sizing.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/sizing.h"
#include "cli/render/words/why.h"
#include "cli/text.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {

namespace {

using tuner::Sized;

constexpr std::size_t kClusters = 14;  // rows; the rest is named in a sentence

/// SizingUnits in which the fastest and the cheapest option still have a digit before the point.
struct SizingUnits {
  const char* time = "days";
  double days = 1;  // of one unit
  const char* money = "M USD";
  double usd = 1e6;
};

SizingUnits units_of(const SizingReport& report) {
  double least_days = 1e18, least_usd = 1e18;
  for (const std::size_t i : report.choice.pareto) {
    least_days = std::min(least_days, report.option(i).cost.days);
    least_usd = std::min(least_usd, report.option(i).cost.usd.value_or(1e18));
  }
  SizingUnits units;
  if (least_days < 0.1) units.time = "hours", units.days = 1.0 / 24;
  if (least_days < 0.1 / 24) units.time = "minutes", units.days = 1.0 / 1440;
  if (least_usd < 5e4) units.money = "k USD", units.usd = 1e3;
  if (least_usd < 50) units.money = "USD", units.usd = 1;
  return units;
}

std::string time_cell(double days, const SizingUnits& units) {
  const double value = days / units.days;
  return value < 1000 ? fmt::format("{:.1f}", value) : thousands(value);
}

std::string interval_cell(const Sized& option, const SizingUnits& units) {
  return fmt::format("{}-{}", time_cell(option.cost.days_interval[0], units),
                     time_cell(option.cost.days_interval[1], units));
}

std::string money_cell(const std::optional<double>& usd, const SizingUnits& units) {
  return usd ? fmt::format("{:.3f}", *usd / units.usd) : "?";
}

/// "hsdp/128 2x4 k76 norm,swiglu": strategy, micro-batch x accumulation, checkpointed layers.
/// Of a model-parallel plan "tp8 pp8x4 cp2 1x32 k16 full".
std::string plan_cell(const Plan& plan) {
  std::string text = short_layout(plan);
  if (text.empty()) text = name_of(plan.strategy);
  if (plan.shard_group > 0) text += fmt::format("/{}", plan.shard_group);
  text += fmt::format(" {}x{}", plan.micro_batch, plan.grad_accum);
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return text;
  return text + fmt::format(" k{} {}", plan.ckpt_layers, recompute_name(plan));
}

Cell goal_cell(bool met, bool asked, std::string text) {
  if (!asked) return {std::move(text)};
  return {std::move(text), met ? Style::kGreen : Style::kRed};
}

/// What the fourth column but one of a table of options says.
enum class Shown { kSpeed, kPrices };

std::string price_cell(const SizingReport& report, const Sized& option) {
  const double usd = report.offer_of(option).usd_per_gpu_hour;
  return usd > 0 ? fmt::format("{:.2f}", usd) : "?";
}

/// The price below which this cluster would have been recommended.
std::string wins_cell(const SizingReport& report, const Sized& option) {
  const std::optional<double> usd = break_even_of(report, option.offer);
  return usd ? fmt::format("< {:.2f}", *usd) : "";
}

std::string options_table(const SizingReport& report, const std::vector<std::size_t>& indices,
                          Shown shown, const Terminal& out) {
  const SizingUnits units = units_of(report);
  std::vector<Column> columns{"cluster", right("GPUs"), right(units.time), right("interval"),
                              right(units.money)};
  if (shown == Shown::kPrices) {
    columns.push_back(right("USD/h"));
    columns.push_back(right("wins at"));
  } else {
    columns.push_back(right("Mtok/s"));
  }
  columns.push_back(right("MFU"));
  columns.push_back({"plan"});
  Table table(std::move(columns));
  const tuner::Goal& goal = report.goal;
  for (const std::size_t i : indices) {
    const Sized& option = report.option(i);
    const sim::TimePrediction& time = option.prediction.time;
    const std::string& name = report.offer_of(option).name;
    std::vector<Cell> cells{
        report.choice.recommended == i                  ? Cell(name + " *", Style::kBold)
        : tuner::estimate_only(report.offer_of(option)) ? Cell(name + " ?")
                                                        : Cell(name),
        option.gpus(),
        goal_cell(tuner::meets_deadline(option, goal), goal.deadline_days.has_value(),
                  time_cell(option.cost.days, units)),
        interval_cell(option, units),
        goal_cell(tuner::meets_budget(option, goal), goal.budget_usd.has_value(),
                  money_cell(option.cost.usd, units))};
    if (shown == Shown::kPrices) {
      cells.emplace_back(price_cell(report, option));
      cells.emplace_back(wins_cell(report, option));
    } else {
      cells.emplace_back(fmt::format("{:.3f}", time.tokens_per_s / 1e6));
    }
    cells.emplace_back(fmt::format("{:.0f} %", 100 * time.mfu));
    cells.emplace_back(plan_cell(option.prediction.plan));
    table.add_row(std::move(cells));
  }
  return table.render(out);
}

std::string scaling_table(const SizingReport& report, const Terminal& out) {
  const SizingUnits units = units_of(report);
  Table table({"", right("GPUs"), right(units.time), right(units.money), right("speed-up"),
               right("ideal"), right("tok/s/GPU"), right("MFU"), right("useful"), "plan"});
  const tuner::Scaling& scaling = *report.scaling;
  const auto add = [&](std::size_t i, const tuner::Growth* growth) {
    const Sized& option = report.option(i);
    const sim::TimePrediction& time = option.prediction.time;
    const bool knee = scaling.knee == i && (scaling.stops || scaling.batch_limit);
    table.add_row({knee ? "knee" : "", option.gpus(), time_cell(option.cost.days, units),
                   money_cell(option.cost.usd, units),
                   growth == nullptr ? Cell("")
                                     : Cell(fmt::format("{:.2f}", growth->speedup),
                                            growth->pays() ? Style::kGreen : Style::kRed),
                   growth == nullptr ? "" : fmt::format("{:g}", growth->ideal),
                   thousands(time.tokens_per_gpu_s), fmt::format("{:.0f} %", 100 * time.mfu),
                   fmt::format("{:.1f} %", 100 * option.cost.goodput.share),
                   plan_cell(option.prediction.plan)});
  };
  add(scaling.growth.front().from, nullptr);
  for (const tuner::Growth& growth : scaling.growth) add(growth.to, &growth);
  return table.render(out);
}

/// All options with a price; on top of them the front, the goal and what is recommended.
std::string chart(const SizingReport& report, const Terminal& out) {
  constexpr int kRows = 16;
  constexpr std::size_t kWorthwhile = 16;  // points; fewer read better in the tables
  const SizingUnits units = units_of(report);
  // Far-off options would press the interesting ones into a corner.
  double slowest = 0, dearest = report.goal.budget_usd.value_or(0);
  for (const std::size_t i : report.choice.pareto) {
    slowest = std::max(slowest, report.option(i).cost.days);
    dearest = std::max(dearest, *report.option(i).cost.usd);
  }
  if (report.goal.deadline_days) slowest = 4 * *report.goal.deadline_days;
  dearest *= 2;
  std::vector<Point> points;
  const auto add = [&](const Sized& option, char mark) {
    if (!option.cost.usd || option.over_critical || option.cut_short) return;
    if (option.cost.days > slowest || *option.cost.usd > dearest) return;
    points.push_back({option.cost.days / units.days, *option.cost.usd / units.usd, mark});
  };
  for (const Sized& option : report.sweep.options) {
    add(option, tuner::meets(option, report.goal) ? '+' : '.');
  }
  for (const std::size_t i : report.choice.pareto) add(report.option(i), 'o');
  if (report.choice.recommended) add(report.option(*report.choice.recommended), '#');
  if (points.size() < kWorthwhile) return "";
  std::vector<double> ticks;
  for (int power = -3; power <= 5; ++power)
    for (const double digit : {1.0, 2.0, 5.0}) ticks.push_back(digit * std::pow(10.0, power));
  const std::string drawn = scatter(points, {units.time, ticks}, {units.money, ticks}, kRows, out);
  if (drawn.empty()) return "";
  std::string legend = "o front, . other";
  if (report.goal.deadline_days || report.goal.budget_usd) {
    legend = "o front, + meets the goal, . does not";
  }
  if (report.choice.recommended) legend = "# recommended, " + legend;
  return drawn + legend + "\n";
}

/// Clusters that the table leaves out, and why.
std::vector<std::string> rest_sentences(const SizingReport& report, std::size_t shown) {
  std::vector<std::string> more, nothing, sentences;
  std::set<std::size_t> has;
  for (std::size_t i = 0; i < report.best_of_each.size(); ++i) {
    const Sized& option = report.option(report.best_of_each[i]);
    has.insert(option.offer);
    if (i >= shown) more.push_back(report.offer_of(option).name);
  }
  for (std::size_t i = 0; i < report.offers.size(); ++i) {
    if (!has.contains(i)) nothing.push_back(report.offers[i].name);
  }
  if (!more.empty()) {
    sentences.push_back(
        fmt::format("Not shown, slower or dearer or without a price: {}.", fmt::join(more, ", ")));
  }
  if (!nothing.empty()) {
    sentences.push_back(
        fmt::format("No plan fits (--json says why): {}.", fmt::join(nothing, ", ")));
  }
  return sentences;
}

/// What marks behind names of clusters mean.
std::string legend_words(const SizingReport& report) {
  std::string text = report.choice.recommended ? "* recommended" : "";
  bool estimates = false, shown_only = false;
  for (const std::size_t i : report.best_of_each) {
    estimates |=
        report.choice.recommended != i && tuner::estimate_only(report.offer_of(report.option(i)));
    shown_only |= report.option(i).shown_only;
  }
  if (!estimates) return text;
  return text + (text.empty() ? "" : "; ") + "? nothing was measured on its GPUs" +
         (shown_only ? ": never recommended" : "");
}

/// The software that is asked about, and that which is model-parallel where both are tried.
std::string software_words(const SizingReport& report) {
  const tuner::Offer& offer = report.offers.front();
  const std::string& stack = offer.profile.stack.id;
  if (!offer.model_parallel || offer.model_parallel->stack.id == stack) return "framework " + stack;
  if (report.model.is_moe()) return "framework " + offer.model_parallel->stack.id;
  return fmt::format("framework {} (tp, pp, cp, ep: {})", stack, offer.model_parallel->stack.id);
}

}  // namespace

std::string sizing_text(const SizingReport& report, const Terminal& out) {
  const tuner::SizingJob& job = report.job;
  std::string text =
      paint(out, Style::kBold, printable(report.model_name, out.utf8)) +
      fmt::format(": {} tokens in sequences of {}, {}\n", tokens_words(job.run.tokens),
                  job.fixed.seq_len, software_words(report));
  if (report.usual_length) text += *report.usual_length + "\n";
  text += heading(out, report.choice.recommended ? "Recommended" : "The goal is not met");
  text += sentences_text(summary_sentences(report), out);
  if (const auto details = detail_sentences(report); !details.empty())
    text += heading(out, "Behind it") + sentences_text(details, out);
  if (report.best_of_each.size() > 1) {
    const std::size_t shown = std::min(kClusters, report.best_of_each.size());
    text += heading(out, "The best size of each cluster");
    text += options_table(report,
                          {report.best_of_each.begin(),
                           report.best_of_each.begin() + static_cast<std::ptrdiff_t>(shown)},
                          Shown::kPrices, out);
    text += sentences_text(rest_sentences(report, shown), out);
    text += paragraph(legend_words(report), out);
  }
  if (report.choice.pareto.size() > 1) {
    text += heading(out, "Front of days and dollars: nothing is both faster and cheaper");
    text += options_table(report, report.choice.pareto, Shown::kSpeed, out);
    if (const std::string drawn = chart(report, out); !drawn.empty()) text += "\n" + drawn;
  }
  if (report.scaling && !report.scaling->growth.empty()) {
    const tuner::Offer& offer = report.offer_of(report.option(*report.scaling->knee));
    text += heading(out, fmt::format("How {} scales", offer.name));
    text += scaling_table(report, out);
    text += sentences_text(scaling_sentences(report), out);
  }
  if (report.savings) {
    const tuner::Savings& savings = *report.savings;
    text += heading(
        out, fmt::format("{} against {} on {}, at equal throughput",
                         name_of(savings.faster.plan.strategy),
                         name_of(savings.slower.plan.strategy), report.offers[savings.offer].name));
    for (const sim::Prediction* p : {&savings.faster, &savings.slower}) {
      text += fmt::format("{}: {:.1f} tokens/s per GPU, {} per step\n", plan_cell(p->plan),
                          p->time.tokens_per_gpu_s, quantity(p->time.iteration_s, "s"));
    }
    text += sentences_text(savings_lines(report), out);
  }
  if (report.best_of_each.size() > 1 || report.choice.pareto.size() > 1) {
    text += "Plans: strategy/shard group, micro-batch x accumulation, k layers checkpointed.\n";
    const auto divides = [](const Sized& option) {
      return !short_layout(option.prediction.plan).empty();
    };
    const std::vector<Sized>& options = report.sweep.options;
    if (std::any_of(options.begin(), options.end(), divides))
      text += "tp, pp x chunks, cp, ep: ranks that share the model (model parallelism).\n";
  }
  text += heading(out, "What this rests on");
  return text + sentences_text(assumption_sentences(report), out);
}

namespace {

using Json = nlohmann::ordered_json;

Json price_json(const SizingReport& report, const tuner::Offer& offer) {
  const profiles::Price& price = offer.price;
  if (!price.known()) return nullptr;
  return {{"kind", name_of(report.price_kind)},
          {"usd_per_gpu_hour", price.usd_per_gpu_hour},
          {"range", price.range},
          {"range_source", price.range_source},
          {"source", price.origin.source},
          {"date", text_or_null(price.origin.date)},
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
  return json_list(report.published, [&](const profiles::WholeRun& run) -> Json {
    return {{"id", run.id},   {"tokens", run.tokens},      {"gpu_hours", run.gpu_hours},
            {"gpu", run.gpu}, {"gpus", or_null(run.gpus)}, {"source", run.source}};
  });
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
  Json growth = json_list(scaling.growth, [&](const tuner::Growth& step) -> Json {
    return {{"from_gpus", report.option(step.from).gpus()},
            {"to_gpus", report.option(step.to).gpus()},
            {"speedup", step.speedup},
            {"ideal", step.ideal},
            {"pays", step.pays()}};
  });
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
  return json_list(report.break_even, [&](const tuner::BreakEven& entry) -> Json {
    const tuner::Offer& offer = report.offers[entry.offer];
    return {
        {"cluster", offer.name},
        {"gpus", report.option(entry.option).gpus()},
        {"break_even_usd_per_gpu_hour", entry.usd_per_gpu_hour},
        {"distance", or_null(entry.distance)},
        {"shown_only", offer.shown_only},
        {"usd_per_gpu_hour", offer.price.known() ? Json(offer.usd_per_gpu_hour) : Json(nullptr)},
        {"price", price_json(report, offer)}};
  });
}

Json reached_json(const profiles::Production& production) {
  Json reached = Json::object();
  for (const auto& [generation, quartiles] : production.reached)
    reached[generation] = {{"n", quartiles.n}, {"mfu_quartiles", quartiles.mfu}};
  return reached;
}

}  // namespace

Json sizing_json(const SizingReport& report) {
  const auto told = [&](const Sized& option) { return option_json(report, option); };
  const auto numbered = [&](std::size_t i) { return told(report.option(i)); };
  const auto best = [&](std::size_t i) {
    Json option = numbered(i);
    option["recommended"] = report.choice.recommended == i;
    return option;
  };
  const auto left_out = [&](const tuner::LeftOut& left) -> Json {
    return {
        {"cluster", report.offers[left.offer].name}, {"gpus", left.gpus}, {"reason", left.reason}};
  };
  Json document{{"schema", "shardwright.sizing/1.0"},
                {"options", json_list(report.sweep.options, told)},
                {"pareto", json_list(report.choice.pareto, numbered)},
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
                {"left_out", json_list(report.sweep.left_out, left_out)},
                {"summary", summary_sentences(report)},
                {"words", recommendation_sentences(report)},
                {"best_of_each", json_list(report.best_of_each, best)},
                {"published", published_json(report)},
                {"assumptions", assumption_sentences(report)}};
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
