// SPDX-License-Identifier: Apache-2.0
#include "cli/render/leave_one_out.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Cell> score_row(const std::string& name, const sim::LeaveOneOutScore& score) {
  std::vector<Cell> cells{name, fmt::format("{}", score.time[0].n)};
  for (const sim::ErrorScore& errors : score.time) {
    cells.emplace_back(percent(errors.mape));
    cells.emplace_back(percent(errors.median));
    cells.emplace_back(percent(errors.worst));
  }
  return cells;
}

std::string scores(const sim::LeaveOneOut& result, const Terminal& out) {
  std::vector<Column> columns{{"source"}, {"times", Align::kRight}};
  for (const char* way : {"fitted: mean", "run out: mean", "source out: mean"}) {
    columns.push_back({way, Align::kRight});
    columns.push_back({"median", Align::kRight});
    columns.push_back({"worst", Align::kRight});
  }
  Table table(std::move(columns));
  for (const auto& [source, score] : result.by_source) table.add_row(score_row(source, score));
  table.add_rule();
  table.add_row(score_row("all", result.all));
  return table.render(out);
}

std::string constants(const sim::LeaveOneOut& result, const Terminal& out) {
  Table table({{"constant"},
               {"fitted", Align::kRight},
               {"run out", Align::kRight},
               {"source out", Align::kRight}});
  const auto range = [](const std::array<double, 2>& r) {
    return fmt::format("{:.4g} to {:.4g}", r[0], r[1]);
  };
  for (const sim::FittedRange& constant : result.constants) {
    table.add_row({constant.name, fmt::format("{:.4g}", constant.value), range(constant.row_out),
                   range(constant.source_out)});
  }
  return table.render(out);
}

std::string every_row(const sim::LeaveOneOut& result,
                      const std::vector<profiles::LedgerRow>& ledger, const Terminal& out) {
  Table table({{"id"},
               {"time, s", Align::kRight},
               {"fitted, %", Align::kRight},
               {"run out, %", Align::kRight},
               {"source out, %", Align::kRight},
               {"in interval"}});
  for (const sim::LeftOutRow& row : result.rows) {
    const profiles::LedgerRow& from = ledger[row.place];
    std::vector<Cell> cells{from.id, fmt::format("{:.5g}", *from.iteration_s)};
    for (const double error : row.error) cells.emplace_back(fmt::format("{:+.1f}", 100 * error));
    cells.emplace_back(row.inside ? "yes" : "no", row.inside ? Style::kGreen : Style::kYellow);
    table.add_row(std::move(cells));
  }
  return table.render(out);
}

Json score_json(const sim::LeaveOneOutScore& score) {
  static constexpr const char* kWays[] = {"in_sample", "held_out", "source_held_out"};
  Json json;
  for (std::size_t way = 0; way < score.time.size(); ++way) {
    const sim::ErrorScore& errors = score.time[way];
    json[kWays[way]] = {
        {"n", errors.n}, {"mape", errors.mape}, {"median", errors.median}, {"worst", errors.worst}};
  }
  json["interval"] = {{"n", score.time[0].n},
                      {"inside", score.inside},
                      {"inside_source_held_out", score.inside_source_out}};
  return json;
}

}  // namespace

std::string leave_one_out_text(const sim::LeaveOneOut& result,
                               const std::vector<profiles::LedgerRow>& ledger, bool rows,
                               const Terminal& out) {
  const auto heading = [&](std::string_view text) {
    return fmt::format("\n{}\n", paint(out, Style::kBold, text));
  };
  std::string text;
  if (rows) text += heading("Every time, held out") + every_row(result, ledger, out);
  text += heading(
      "Iteration time with the constants fitted again: to all runs, without the run, without its "
      "source");
  text += scores(result, out);
  text += fmt::format(
      "Of {0} times, {1} lie inside the {3:.0f} % interval made without the run, {2} inside the "
      "one "
      "made without its source.\n",
      result.all.time[0].n, result.all.inside, result.all.inside_source_out,
      100 * result.interval_level);
  text += heading("The fitted constants, and how far one run or one source moves them");
  text += constants(result, out);
  return text;
}

Json leave_one_out_json(const sim::LeaveOneOut& result,
                        const std::vector<profiles::LedgerRow>& ledger) {
  Json json = score_json(result.all);
  json["interval"]["level"] = result.interval_level;
  json["by_source"] = Json::object();
  for (const auto& [source, score] : result.by_source) {
    json["by_source"][source] = score_json(score);
  }
  json["constants"] = Json::array();
  for (const sim::FittedRange& constant : result.constants) {
    json["constants"].push_back({{"name", constant.name},
                                 {"value", constant.value},
                                 {"held_out", constant.row_out},
                                 {"source_held_out", constant.source_out}});
  }
  json["rows"] = Json::array();
  for (const sim::LeftOutRow& row : result.rows) {
    json["rows"].push_back({{"id", ledger[row.place].id},
                            {"predicted_iter_time_s", row.predicted_s[1]},
                            {"in_sample_error", row.error[0]},
                            {"time_error", row.error[1]},
                            {"source_held_out_error", row.error[2]},
                            {"inside_interval", row.inside}});
  }
  return json;
}

}  // namespace shardwright::cli
