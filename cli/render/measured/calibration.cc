// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/calibration.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/text.h"
#include "profiles/fields.h"
#include "profiles/profile.h"

namespace shardwright::cli {

namespace {

using profiles::CalibratedGroup;
using profiles::CostGroup;

/// A value in the unit of its path.
class Units {
 public:
  explicit Units(const profiles::Profile& profile) : copy_(profile) {
    const profiles::FieldList fields = profiles::fields_of(copy_);
    for (const profiles::Field& field : fields.fields()) units_[field.path] = field.unit;
  }
  std::string text(const std::string& path, double value) const {
    const auto at = units_.find(path);
    return quantity(value, at != units_.end() ? at->second : "");
  }

 private:
  profiles::Profile copy_;
  std::map<std::string, std::string_view> units_;
};

/// A measured time near nothing makes a relative error of any size, which says nothing.
std::string error_text(double mape) {
  return mape > 10 ? "> 1000 %" : percent(mape);
}

std::string plus_minus(double log_width) {
  return percent(std::expm1(log_width));
}

/// The 95 % interval as a share of the value, or as a factor where it is wide.
std::string interval_around(const sim::FittedValue& value, const Units& units) {
  if (!(value.low > 0)) return fmt::format("0 to {}", units.text(value.path, value.high));
  const double factor = std::max(value.high / value.after, value.after / value.low);
  return factor < 1.5 ? fmt::format("+- {}", percent(factor - 1))
                      : fmt::format("x or / {:.2g}", factor);
}

std::string moved_table(const CalibrationReport& report, const Terminal& terminal) {
  const Units units(report.result.profile);
  Table table(
      {"value", right("before"), right("after"), right("95 % within"), right("operations")});
  bool any = false;
  for (const sim::GroupFit& fit : report.result.groups) {
    for (const sim::FittedValue& value : fit.values) {
      if (!value.determined) continue;
      any = true;
      table.add_row({value.path, units.text(value.path, value.before),
                     units.text(value.path, value.after), interval_around(value, units),
                     thousands(value.rows)});
    }
  }
  return any ? table.render(terminal) : "Nothing was determined: no value differs from the base.\n";
}

std::string error_table(const CalibrationReport& report, const Terminal& terminal) {
  Table table({"group", right("operations"), right("timings"), right("before"), right("in sample"),
               right("held out"), right("total within")});
  for (const sim::GroupFit& fit : report.result.groups) {
    const CalibratedGroup& errors = fit.errors;
    if (errors.rows == 0) continue;
    table.add_row({name_of(fit.group), thousands(errors.rows), thousands(errors.observations),
                   error_text(errors.before.mape), error_text(errors.in_sample.mape),
                   errors.held_out.n > 0 ? error_text(errors.held_out.mape) : "",
                   errors.half_width > 0 ? plus_minus(errors.half_width) : ""});
  }
  return table.render(terminal);
}

std::string undetermined(const CalibrationReport& report, const Terminal& terminal) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const sim::GroupFit& fit : report.result.groups) {
    if (fit.errors.rows == 0) {
      if (fit.group != CostGroup::kContention) {
        by_reason["not measured at all"].push_back(std::string(name_of(fit.group)));
      }
      continue;
    }
    for (const sim::FittedValue& value : fit.values) {
      if (!value.determined && value.rows > 0) by_reason[value.why_not].push_back(value.path);
    }
  }
  std::string text;
  for (const auto& [reason, paths] : by_reason) {
    text += paragraph(fmt::format("  {}: {}.", reason, fmt::join(paths, ", ")), terminal, "    ");
  }
  return text.empty() ? "" : heading(terminal, "Not determined, and as in the base") + text;
}

/// The largest by time.
std::string left_out(const CalibrationReport& report, const Terminal& terminal) {
  std::vector<profiles::LeftOut> all = report.set.left_out;
  all.insert(all.end(), report.rows_left_out.begin(), report.rows_left_out.end());
  all.insert(all.end(), report.result.left_out.begin(), report.result.left_out.end());
  if (all.empty()) return "";
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  Table table({"left out", right("times"), right("share of the time")});
  constexpr std::size_t kShown = 8;
  double rest_seconds = 0, rest_count = 0;
  const auto share = [&](double seconds) {
    return report.set.kernel_seconds > 0 ? percent(seconds / report.set.kernel_seconds) : "";
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i >= kShown) {
      rest_seconds += all[i].seconds;
      rest_count += static_cast<double>(all[i].count);
      continue;
    }
    table.add_row(
        {shorten(all[i].what, 64, terminal.utf8), thousands(all[i].count), share(all[i].seconds)});
  }
  if (rest_count > 0) {
    table.add_row({fmt::format("{} other kinds", all.size() - kShown), thousands(rest_count),
                   share(rest_seconds)});
  }
  return "\n" + table.render(terminal);
}

}  // namespace

std::string median_error(const profiles::ErrorSummary& errors) {
  return errors.n == 0 ? "-" : percent(errors.median);
}

std::string calibration_text(const CalibrationReport& report, const Terminal& terminal) {
  std::int64_t timings = 0;
  for (const auto& row : report.result.rows) timings += row.count;
  std::string text =
      paragraph(fmt::format("{} against {}: {} timings of {} distinct operations.", report.base,
                            report.set.sources.empty() ? "what other profiles were fitted to"
                            : report.set.sources.size() == 1
                                ? report.set.sources.front().file
                                : fmt::format("{} files", report.set.sources.size()),
                            thousands(timings), thousands(report.result.rows.size())),
                terminal);
  for (const std::string& note : report.set.notes) text += paragraph(note, terminal);
  if (!report.facts.empty()) {
    std::vector<std::string> paths;
    for (const auto& fact : report.facts) paths.push_back(fact.path);
    text += paragraph(fmt::format("The machine itself, as it says: {}.", fmt::join(paths, ", ")),
                      terminal);
  }
  text += "\n" + moved_table(report, terminal);
  text += "\n" + error_table(report, terminal);
  text += undetermined(report, terminal);
  text += left_out(report, terminal);
  if (!report.out.empty()) {
    text += fmt::format("\n{0} is written; `shardwright predict --cluster {0} ...` uses it.\n",
                        report.out);
  }
  return text;
}

std::string drift_text(const sim::Drift& drift, const std::string& profile,
                       const Terminal& terminal) {
  Table table({"group", right("operations"), right("measured / predicted"), right("usual"),
               right("known operations"), right("now / then"), ""});
  const auto factor = [](double log) { return fmt::format("{:.3f}", std::exp(log)); };
  std::string text;
  for (const sim::GroupDrift& group : drift.groups) {
    table.add_row({name_of(group.group), thousands(group.rows), factor(group.median),
                   fmt::format("{} to {}", factor(group.low), factor(group.high)),
                   thousands(group.same_rows), group.same_rows > 0 ? factor(group.same_median) : "",
                   group.drifted ? Cell("changed", Style::kRed) : Cell("holds", Style::kGreen)});
  }
  if (!drift.groups.empty()) text += table.render(terminal);
  for (const std::string& change : drift.changes) {
    text += paragraph(fmt::format("Since {} was made {}.", profile, change), terminal);
  }
  if (drift.groups.empty()) {
    text += paragraph(
        fmt::format("{} was not calibrated in anything that these files measure.", profile),
        terminal);
  } else if (drift.any()) {
    text += paragraph(
        fmt::format("{} no longer describes this machine: calibrate it anew.", profile), terminal);
  } else {
    text += paragraph(fmt::format("{} still holds.", profile), terminal);
  }
  return text;
}

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
    of = fmt::format("{} of {} took a median of {} ({} left out as warm-up):",
                     counted(report.measured.steps, "step"), report.log,
                     duration(report.fit.measured_s), report.measured.skipped);
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
  Table table(
      {"value", right("before"), right("now"), right("95 % interval"), right("of the change")});
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
  table.add_row({thousands(size.after.plan.gpus), duration(before.iteration_s),
                 half_width_text(before), duration(after.iteration_s), half_width_text(after),
                 thousands(after.tokens_per_s), name_of(size.after.memory.verdict)});
}

std::string sizes_table(const AnchorReport& report, const Terminal& terminal) {
  Table table({"GPUs", "before", right(""), "now", right(""), "tokens/s", left("memory")});
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
          errors.runs,
          percent(errors.mean(errors.before)),
          percent(errors.mean(errors.after)),
          errors.inside,
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
                        {"values", ordered_json::array()}};
  const auto& values = report.fit.result.groups.front().values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    document["values"].push_back({{"path", values[i].path},
                                  {"before", values[i].before},
                                  {"after", values[i].after},
                                  {"interval", {values[i].low, values[i].high}},
                                  {"share", report.fit.shares[i].second}});
  }
  document["sizes"] = json_list(report.sizes, [](const CarriedSize& size) -> ordered_json {
    return {{"gpus", size.after.plan.gpus},
            {"before", times_json(size.before.time)},
            {"after", times_json(size.after.time)}};
  });
  return document;
}

std::string anchored_series_text(const std::vector<sim::AnchoredSeries>& series,
                                 const Terminal& terminal) {
  Table table({"series", "from GPUs", right("runs"), right("error"), right("anchored"),
               right("inside"), right("interval"), right("anchored")});
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
    ordered_json runs = json_list(one.runs, [&](const sim::AnchoredRun& run) -> ordered_json {
      return {{"id", run.id},
              {"gpus", run.gpus},
              {"error_before", run.before_error},
              {"error", run.error},
              {"half_width_before", run.before_half_width},
              {"half_width", run.half_width},
              {"inside_before", run.inside_before},
              {"inside", run.inside}};
    });
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

namespace {

ordered_json source_json(const profiles::ObservationSource& source) {
  return {{"file", source.file}, {"format", source.format},
          {"gpu", source.gpu},   {"software", source.software},
          {"date", source.date}, {"truncated", source.truncated}};
}

ordered_json left_out_json(const CalibrationReport& report) {
  ordered_json list = ordered_json::array();
  for (const auto* part : {&report.set.left_out, &report.rows_left_out, &report.result.left_out}) {
    for (const profiles::LeftOut& entry : *part) {
      list.push_back({{"what", entry.what}, {"count", entry.count}, {"seconds", entry.seconds}});
    }
  }
  return list;
}

}  // namespace

std::string calibration_json(const CalibrationReport& report) {
  ordered_json document{{"schema", "shardwright.calibration/1.0"},
                        {"base", report.base},
                        {"out", text_or_null(report.out)},
                        {"sources", json_list(report.set.sources, source_json)},
                        {"values", ordered_json::array()},
                        {"groups", ordered_json::array()}};
  for (const sim::GroupFit& fit : report.result.groups) {
    for (const sim::FittedValue& value : fit.values) {
      ordered_json entry{
          {"path", value.path},   {"group", name_of(fit.group)},    {"before", value.before},
          {"after", value.after}, {"determined", value.determined}, {"operations", value.rows}};
      if (value.determined) {
        entry["interval"] = {value.low, value.high};
      } else {
        entry["why_not"] = value.why_not;
      }
      document["values"].push_back(std::move(entry));
    }
    if (fit.errors.rows == 0) continue;
    document["groups"].push_back({{"group", name_of(fit.group)},
                                  {"operations", fit.errors.rows},
                                  {"timings", fit.errors.observations},
                                  {"before", errors_json(fit.errors.before)},
                                  {"in_sample", errors_json(fit.errors.in_sample)},
                                  {"held_out", errors_json(fit.errors.held_out)},
                                  {"half_width", fit.errors.half_width}});
  }
  document["measured_products"] = report.result.products.size();
  document["left_out"] = left_out_json(report);
  document["notes"] = report.set.notes;
  return json_text(document) + "\n";
}

std::string drift_json(const sim::Drift& drift, const std::string& profile) {
  ordered_json document{{"schema", "shardwright.drift/1.0"},
                        {"profile", profile},
                        {"drifted", drift.any()},
                        {"changes", drift.changes}};
  document["groups"] = json_list(drift.groups, [](const sim::GroupDrift& group) -> ordered_json {
    return {{"group", name_of(group.group)},
            {"operations", group.rows},
            {"measured_over_predicted", std::exp(group.median)},
            {"usual", {std::exp(group.low), std::exp(group.high)}},
            {"known_operations", group.same_rows},
            {"now_over_then",
             group.same_rows > 0 ? ordered_json(std::exp(group.same_median)) : ordered_json()},
            {"drifted", group.drifted}};
  });
  return json_text(document) + "\n";
}

}  // namespace shardwright::cli
