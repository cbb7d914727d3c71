// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/strangers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/scores/validation.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

namespace {

using Json = nlohmann::ordered_json;
using Coverage = profiles::NoveltyWidths::Coverage;

constexpr const char* kUse = "reported, never fitted to: they show what a stranger gets";

Json coverage_json(const Coverage& coverage) {
  return {{"runs", coverage.runs},
          {"inside", coverage.inside},
          {"median_half_width", coverage.median_half_width}};
}

void add_rows(Table& table, const std::map<std::string, Coverage>& groups) {
  for (const auto& [name, coverage] : groups) {
    table.add_row(
        {name, coverage.runs,
         percent(static_cast<double>(coverage.inside) / static_cast<double>(coverage.runs)),
         fmt::format("{:.2f}", std::exp(coverage.median_half_width))});
  }
}

}  // namespace

std::string strangers_text(const sim::Validation& strangers, const Terminal& out) {
  std::vector<Column> columns = score_columns("source");
  columns.push_back(right("in the 90 % interval"));
  Table table(std::move(columns));
  const auto add = [&](const std::string& name, const sim::ValidationSummary& summary) {
    std::vector<Cell> cells = score_cells(name, summary);
    cells.emplace_back(fmt::format("{} of {}", summary.inside_interval, summary.time.n));
    table.add_row(std::move(cells));
  };
  for (const auto& [source, summary] : strangers.by_source) add(source, summary);
  table.add_rule();
  add("all", strangers.all);
  return heading(out, "Strangers: sources to which nothing was fitted") + table.render(out) +
         paragraph(
             "These runs are reported, never fitted to: constants, presets and widths come "
             "from the other tables. They show what somebody gets whose runs nobody saw.",
             out);
}

Json strangers_json(const sim::Validation& strangers) {
  const auto summary_json = [](const sim::ValidationSummary& summary) -> Json {
    return {
        {"time", score_json(summary.time)},
        {"interval", {{"n", summary.time.n}, {"inside", summary.inside_interval}}},
        {"memory", score_json(summary.memory)},
        {"memory_interval", {{"n", summary.memory.n}, {"inside", summary.inside_memory_interval}}}};
  };
  Json json = summary_json(strangers.all);
  json["use"] = kUse;
  json["by_source"] = Json::object();
  for (const auto& [source, summary] : strangers.by_source)
    json["by_source"][source] = summary_json(summary);
  json["rows"] = validation_json(strangers)["rows"];
  return json;
}

std::string novelty_coverage_text(const profiles::NoveltyWidths& widths, const Terminal& out) {
  if (!widths.known()) return {};
  Table table({"runs as a stranger's", right("runs"), right("inside"), right("median factor")});
  add_rows(table, widths.by_class);
  table.add_rule();
  add_rows(table, widths.by_novelty);
  Table sources({"source", right("runs"), right("mean error"), right("without what it taught"),
                 right("inside")});
  for (const auto& [name, source] : widths.by_source) {
    sources.add_row(
        {name, source.runs, percent(source.named_error), percent(source.stranger_error),
         percent(static_cast<double>(source.inside) / static_cast<double>(source.runs))});
  }
  return heading(out, "Intervals made without a run's source, by class and by what else is new") +
         table.render(out) +
         heading(out, "Errors without the constants and presets that a source alone supports") +
         sources.render(out) +
         paragraph(
             fmt::format("Predicted without their source and the presets that it taught, {} of {} "
                         "published times lie inside {:.0f} % intervals made from the others.",
                         widths.all.inside, widths.all.runs, 100 * widths.level),
             out);
}

Json novelty_coverage_json(const profiles::NoveltyWidths& widths) {
  if (!widths.known()) return nullptr;
  const auto groups = [](const std::map<std::string, Coverage>& of) {
    Json json = Json::object();
    for (const auto& [name, coverage] : of) json[name] = coverage_json(coverage);
    return json;
  };
  Json sources = groups(widths.by_source);
  for (const auto& [name, source] : widths.by_source) {
    sources[name]["mean_error_named"] = source.named_error;
    sources[name]["mean_error_stranger"] = source.stranger_error;
  }
  return {{"level", widths.level},
          {"runs", widths.all.runs},
          {"inside", widths.all.inside},
          {"by_class", groups(widths.by_class)},
          {"by_novelty", groups(widths.by_novelty)},
          {"by_source", std::move(sources)}};
}

namespace {

std::string year_of(const sim::ReleaseScore& score) {
  return score.year > 0 ? fmt::format("{}", score.year) : "no date";
}

void add_row(Table& table, const std::string& name, const std::string& released,
             const sim::ReleaseScore& score) {
  const std::int64_t n = score.time.n;
  const auto mean = [](const sim::ErrorScore& errors) {
    return errors.n > 0 ? percent(errors.mape) : std::string();
  };
  table.add_row({name, released, n, mean(score.time), percent(score.time.median),
                 percent(score.time.worst), mean(score.source_left_out),
                 fmt::format("{} of {}", score.inside_interval, n)});
}

Json scores_json(const sim::ReleaseScore& score) {
  Json json = score_json(score.time);
  json["interval"] = {{"n", score.time.n}, {"inside", score.inside_interval}};
  json["source_left_out"] = score_json(score.source_left_out);
  return json;
}

}  // namespace

std::string by_framework_text(const std::vector<sim::FrameworkScore>& scores, const Terminal& out) {
  Table table({"framework", "released", right("times"), right("mean"), right("median"),
               right("worst"), right("source left out"), right("in the 90 % interval")});
  for (const sim::FrameworkScore& framework : scores) {
    const bool one = framework.years.size() == 1;
    add_row(table, framework.framework, one ? year_of(framework.all) : "all", framework.all);
    for (const sim::ReleaseScore& year : framework.years) {
      if (!one) add_row(table, "", year_of(year), year);
    }
  }
  return heading(out, "Errors of iteration time by framework, newest release first") +
         table.render(out);
}

Json by_framework_json(const std::vector<sim::FrameworkScore>& scores) {
  const auto of_year = [](const sim::ReleaseScore& year) {
    Json json{{"year", year.year > 0 ? Json(year.year) : Json(nullptr)},
              {"releases", year.releases}};
    json.update(scores_json(year));
    return json;
  };
  return json_list(scores, [&](const sim::FrameworkScore& framework) {
    Json json{{"framework", framework.framework}, {"newest", framework.all.releases.front()}};
    json.update(scores_json(framework.all));
    json["years"] = json_list(framework.years, of_year);
    return json;
  });
}

std::string by_gpu_text(const sim::Validation& validation, const Terminal& out) {
  Table table(score_columns("GPU"));
  for (const auto& [gpu, summary] : validation.by_gpu) {
    if (summary.predicted > 0) table.add_row(score_cells(gpu, summary));
  }
  return heading(out, "Errors by GPU: iteration time, then peak memory") + table.render(out);
}

nlohmann::ordered_json by_gpu_json(const sim::Validation& validation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [gpu, summary] : validation.by_gpu) {
    if (summary.predicted == 0) continue;
    json[gpu] = {{"time", score_json(summary.time)}, {"memory", score_json(summary.memory)}};
  }
  return json;
}

namespace {

constexpr std::size_t kGroupsShown = 8;

}  // namespace

std::string choices_text(const sim::ChoiceScore& score, bool rows, const Terminal& out) {
  if (score.groups.empty()) return {};
  Table table({"model", "on", "release", right("layouts"), right("rank correlation"),
               right("first choice loses"), right("any layout loses")});
  const std::size_t shown =
      rows ? score.groups.size() : std::min(kGroupsShown, score.groups.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const sim::ChoiceGroup& group = score.groups[i];
    table.add_row({group.model, fmt::format("{} {}", group.gpus, group.gpu), group.release,
                   group.layouts, fmt::format("{:+.2f}", group.kendall_tau), percent(group.regret),
                   percent(group.random_regret)});
  }
  std::string text =
      heading(out, "Choices among measured layouts of one model on one cluster, worst first") +
      table.render(out);
  if (shown < score.groups.size())
    text += fmt::format("{} more with --rows.\n", score.groups.size() - shown);
  return text +
         paragraph(fmt::format("In {} groups the layout that is predicted to be the fastest takes "
                               "{} longer than the one that was, {} at worst; any of the measured "
                               "layouts {} on average. Mean rank correlation (Kendall): {:.2f}.",
                               score.groups.size(), percent(score.regret_mean),
                               percent(score.regret_worst), percent(score.random_regret_mean),
                               score.kendall_tau),
                   out);
}

nlohmann::ordered_json choices_json(const sim::ChoiceScore& score) {
  nlohmann::ordered_json groups =
      json_list(score.groups, [&](const sim::ChoiceGroup& group) -> nlohmann::ordered_json {
        return {{"source", group.source},
                {"model", group.model},
                {"gpu", group.gpu},
                {"gpus", group.gpus},
                {"seq_len", group.seq_len},
                {"global_batch", group.sequences},
                {"precision", group.precision},
                {"release", group.release},
                {"layouts", group.layouts},
                {"kendall_tau", group.kendall_tau},
                {"regret", group.regret},
                {"random_regret", group.random_regret},
                {"chosen", group.chosen},
                {"best", group.best}};
      });
  return {{"groups", score.groups.size()},
          {"kendall_tau", score.kendall_tau},
          {"regret_mean", score.regret_mean},
          {"regret_worst", score.regret_worst},
          {"random_regret_mean", score.random_regret_mean},
          {"by_group", std::move(groups)}};
}

}  // namespace shardwright::cli
