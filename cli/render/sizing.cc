// SPDX-License-Identifier: Apache-2.0
#include "cli/render/sizing.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/render/words/model_parallel.h"
#include "cli/text.h"

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
  std::vector<Column> columns{{"cluster"},
                              {"GPUs", Align::kRight},
                              {units.time, Align::kRight},
                              {"interval", Align::kRight},
                              {units.money, Align::kRight}};
  if (shown == Shown::kPrices) {
    columns.push_back({"USD/h", Align::kRight});
    columns.push_back({"wins at", Align::kRight});
  } else {
    columns.push_back({"Mtok/s", Align::kRight});
  }
  columns.push_back({"MFU", Align::kRight});
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
        fmt::format("{}", option.gpus()),
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
  Table table({{""},
               {"GPUs", Align::kRight},
               {units.time, Align::kRight},
               {units.money, Align::kRight},
               {"speed-up", Align::kRight},
               {"ideal", Align::kRight},
               {"tok/s/GPU", Align::kRight},
               {"MFU", Align::kRight},
               {"useful", Align::kRight},
               {"plan"}});
  const tuner::Scaling& scaling = *report.scaling;
  const auto add = [&](std::size_t i, const tuner::Growth* growth) {
    const Sized& option = report.option(i);
    const sim::TimePrediction& time = option.prediction.time;
    const bool knee = scaling.knee == i && (scaling.stops || scaling.batch_limit);
    table.add_row({knee ? "knee" : "", fmt::format("{}", option.gpus()),
                   time_cell(option.cost.days, units), money_cell(option.cost.usd, units),
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
  for (double power = 0.001; power < 1e6; power *= 10)
    for (const double digit : {1.0, 2.0, 5.0}) ticks.push_back(digit * power);
  const std::string drawn = scatter(points, {units.time, ticks}, {units.money, ticks}, kRows, out);
  if (drawn.empty()) return "";
  std::string legend = "o front, . other";
  if (report.goal.deadline_days || report.goal.budget_usd) {
    legend = "o front, + meets the goal, . does not";
  }
  if (report.choice.recommended) legend = "# recommended, " + legend;
  return drawn + legend + "\n";
}

std::string sentences_text(const std::vector<std::string>& sentences, const Terminal& out) {
  std::string text;
  for (const std::string& sentence : sentences) {
    for (const std::string& line : wrap(sentence, out.columns)) text += line + "\n";
  }
  return text;
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
    text += sentences_text({legend_words(report)}, out);
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

}  // namespace shardwright::cli
