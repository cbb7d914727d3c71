// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/strangers.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/scores/validation.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

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
        {name, fmt::format("{}", coverage.runs),
         percent(static_cast<double>(coverage.inside) / static_cast<double>(coverage.runs)),
         fmt::format("{:.2f}", std::exp(coverage.median_half_width))});
  }
}

}  // namespace

std::string strangers_text(const sim::Validation& strangers, const Terminal& out) {
  std::vector<Column> columns = score_columns("source");
  columns.push_back({"in the 90 % interval", Align::kRight});
  Table table(std::move(columns));
  const auto add = [&](const std::string& name, const sim::ValidationSummary& summary) {
    std::vector<Cell> cells{name};
    add_score(cells, summary.time);
    add_score(cells, summary.memory);
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
  Table table({{"runs as a stranger's"},
               {"runs", Align::kRight},
               {"inside", Align::kRight},
               {"median factor", Align::kRight}});
  add_rows(table, widths.by_class);
  table.add_rule();
  add_rows(table, widths.by_novelty);
  Table sources({{"source"},
                 {"runs", Align::kRight},
                 {"mean error", Align::kRight},
                 {"without what it taught", Align::kRight},
                 {"inside", Align::kRight}});
  for (const auto& [name, source] : widths.by_source) {
    sources.add_row(
        {name, fmt::format("{}", source.runs), percent(source.named_error),
         percent(source.stranger_error),
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

}  // namespace shardwright::cli
