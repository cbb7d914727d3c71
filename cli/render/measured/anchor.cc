// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/anchor.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/render/words/plan.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;

std::string interval_text(const sim::TimePrediction& time) {
  return fmt::format("{} to {}", duration(time.interval_s[0]), duration(time.interval_s[1]));
}

/// "+6.2 %": half of what the interval spans.
std::string half_width_text(const sim::TimePrediction& time) {
  return "+-" + percent(std::sqrt(time.interval_s[1] / time.interval_s[0]) - 1);
}

std::string difference(double measured, double predicted) {
  const double off = measured / predicted - 1;
  return fmt::format("{} {}", percent(std::abs(off)), off > 0 ? "slower" : "faster");
}

std::string first_sentence(const AnchorReport& report) {
  const sim::TimePrediction& before = report.fit.before.time;
  std::string of = "The step took";
  if (!report.log.empty()) {
    of = fmt::format(
        "{} of {} took a median of {} ({} left out as warm-up):",
        report.measured.steps == 1 ? "1 step" : fmt::format("{} steps", report.measured.steps),
        report.log, duration(report.fit.measured_s), report.measured.skipped);
  } else {
    of = fmt::format("{} {}:", of, duration(report.fit.measured_s));
  }
  return fmt::format("{} {} than the {} that were predicted ({}).", of,
                     difference(report.fit.measured_s, before.iteration_s),
                     duration(before.iteration_s), interval_text(before));
}

std::string carried_sentence(const AnchorReport& report) {
  if (report.fit.implausible) {
    return fmt::format(
        "That is beyond {:g} half-widths of the interval, so nothing is carried: the plan, the "
        "batch "
        "or the framework may be other than said here, or the run waits for what others do not; a "
        "trace tells where the time goes (calibrate --trace).",
        sim::kImplausible);
  }
  if (!(report.fit.carried > 0)) {
    return "Nothing moves: published runs like it are known as well as one step tells.";
  }
  return fmt::format(
      "{} of that is carried to other sizes and plans of {} with {}; the rest, by published "
      "series, is this run's own.",
      percent(report.fit.carried, 0), report.job.model_name, report.job.profile.stack.id);
}

std::string values_table(const AnchorReport& report, const Terminal& terminal) {
  Table table({{"value"},
               {"before", Align::kRight},
               {"now", Align::kRight},
               {"95 % interval", Align::kRight},
               {"of the change", Align::kRight}});
  const auto& values = report.fit.result.groups.front().values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const sim::FittedValue& value = values[i];
    table.add_row({value.path, fmt::format("{:.4g}", value.before),
                   fmt::format("{:.4g}", value.after),
                   fmt::format("{:.4g} to {:.4g}", value.low, value.high),
                   percent(report.fit.shares[i].second, 0)});
  }
  return table.render(terminal);
}

void add_size(const CarriedSize& size, Table& table) {
  const sim::TimePrediction &before = size.before.time, &after = size.after.time;
  table.add_row({thousands(static_cast<double>(size.after.plan.gpus)), duration(before.iteration_s),
                 half_width_text(before), duration(after.iteration_s), half_width_text(after),
                 thousands(after.tokens_per_s), std::string(name_of(size.after.memory.verdict))});
}

std::string sizes_table(const AnchorReport& report, const Terminal& terminal) {
  Table table({{"GPUs"},
               {"before"},
               {"", Align::kRight},
               {"now"},
               {"", Align::kRight},
               {"tokens/s"},
               {"memory", Align::kLeft}});
  add_size({report.fit.before, report.fit.after}, table);
  for (const CarriedSize& size : report.sizes) add_size(size, table);
  return table.render(terminal);
}

ordered_json times_json(const sim::TimePrediction& time) {
  return {{"iteration_time_s", time.iteration_s},
          {"iteration_time_interval_s", {time.interval_s[0], time.interval_s[1]}}};
}

struct SeriesErrors {
  double before = 0, after = 0, width_before = 0, width = 0;
  std::int64_t runs = 0, inside_before = 0, inside = 0;

  void add(const sim::AnchoredRun& run) {
    before += std::abs(run.before_error);
    after += std::abs(run.error);
    width_before += run.before_half_width;
    width += run.half_width;
    inside_before += run.inside_before;
    inside += run.inside;
    ++runs;
  }
  double mean(double sum) const { return runs > 0 ? sum / static_cast<double>(runs) : 0; }
};

SeriesErrors errors_of(const sim::AnchoredSeries& series) {
  SeriesErrors errors;
  for (const sim::AnchoredRun& run : series.runs) errors.add(run);
  return errors;
}

std::vector<Cell> series_cells(const std::string& name, const std::string& from,
                               const SeriesErrors& errors) {
  return {name,
          from,
          fmt::format("{}", errors.runs),
          percent(errors.mean(errors.before)),
          percent(errors.mean(errors.after)),
          fmt::format("{}", errors.inside),
          "+-" + percent(std::expm1(errors.mean(errors.width_before))),
          "+-" + percent(std::expm1(errors.mean(errors.width)))};
}

}  // namespace

std::string anchor_text(const AnchorReport& report, const Terminal& terminal) {
  std::string text = paragraph(first_sentence(report), terminal);
  text += paragraph(carried_sentence(report), terminal);
  if (!report.fit.result.groups.front().values.empty() && report.fit.carried > 0)
    text += heading(terminal, "Values that moved") + values_table(report, terminal);
  text += heading(terminal, fmt::format("{}: {} on more GPUs",
                                        report.fit.carried > 0 ? "Carried" : "Predicted as before",
                                        plan_words(report.fit.before.plan)));
  text += sizes_table(report, terminal);
  if (!report.out.empty()) {
    text += "\n" + paragraph(fmt::format("{} holds it: predict, tune and size take it as --cluster "
                                         "{}. Other models and frameworks keep their intervals: a "
                                         "step says nothing measurable of them, nor of other GPUs.",
                                         report.out, report.out),
                             terminal);
  }
  return text;
}

ordered_json anchor_json(const AnchorReport& report) {
  ordered_json document{{"schema", "shardwright.anchor/1.0"},
                        {"model", report.job.model_name},
                        {"cluster", report.job.cluster_name},
                        {"stack", report.job.profile.stack.id},
                        {"gpus", report.fit.before.plan.gpus},
                        {"measured_s", report.fit.measured_s},
                        {"log", report.log},
                        {"steps", report.measured.steps},
                        {"carried", report.fit.carried},
                        {"implausible", report.fit.implausible},
                        {"before", times_json(report.fit.before.time)},
                        {"after", times_json(report.fit.after.time)},
                        {"values", ordered_json::array()},
                        {"sizes", ordered_json::array()}};
  const auto& values = report.fit.result.groups.front().values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    document["values"].push_back({{"path", values[i].path},
                                  {"before", values[i].before},
                                  {"after", values[i].after},
                                  {"interval", {values[i].low, values[i].high}},
                                  {"share", report.fit.shares[i].second}});
  }
  for (const CarriedSize& size : report.sizes) {
    document["sizes"].push_back({{"gpus", size.after.plan.gpus},
                                 {"before", times_json(size.before.time)},
                                 {"after", times_json(size.after.time)}});
  }
  return document;
}

std::string anchored_series_text(const std::vector<sim::AnchoredSeries>& series,
                                 const Terminal& terminal) {
  Table table({{"series"},
               {"from GPUs"},
               {"runs", Align::kRight},
               {"error", Align::kRight},
               {"anchored", Align::kRight},
               {"inside", Align::kRight},
               {"interval", Align::kRight},
               {"anchored", Align::kRight}});
  SeriesErrors all;
  for (const sim::AnchoredSeries& one : series) {
    std::int64_t most = one.from_gpus;
    for (const sim::AnchoredRun& run : one.runs) {
      all.add(run);
      most = std::max(most, run.gpus);
    }
    table.add_row(series_cells(fmt::format("{}, {} on {}", one.source, one.model, one.gpu),
                               fmt::format("{} to {}", one.from_gpus, most), errors_of(one)));
  }
  table.add_rule();
  table.add_row(series_cells(fmt::format("all {} series", series.size()), "", all));
  return table.render(terminal);
}

ordered_json anchored_series_json(const std::vector<sim::AnchoredSeries>& series) {
  ordered_json document{{"schema", "shardwright.anchored_series/1.0"},
                        {"series", ordered_json::array()}};
  for (const sim::AnchoredSeries& one : series) {
    ordered_json runs = ordered_json::array();
    for (const sim::AnchoredRun& run : one.runs) {
      runs.push_back({{"id", run.id},
                      {"gpus", run.gpus},
                      {"error_before", run.before_error},
                      {"error", run.error},
                      {"half_width_before", run.before_half_width},
                      {"half_width", run.half_width},
                      {"inside_before", run.inside_before},
                      {"inside", run.inside}});
    }
    document["series"].push_back({{"source", one.source},
                                  {"gpu", one.gpu},
                                  {"stack", one.stack},
                                  {"model", one.model},
                                  {"anchor", one.anchor},
                                  {"from_gpus", one.from_gpus},
                                  {"runs", std::move(runs)}});
  }
  return document;
}

}  // namespace shardwright::cli
