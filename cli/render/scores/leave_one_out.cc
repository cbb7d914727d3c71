// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/leave_one_out.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/render/scores/validation.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Cell> score_row(const std::string& name, const sim::LeaveOneOutScore& score) {
  std::vector<Cell> cells{name, fmt::format("{}", score.time[0].n)};
  for (const sim::ErrorScore& errors : score.time) {
    cells.emplace_back(percent(errors.mape));
    cells.emplace_back(percent(errors.worst));
  }
  return cells;
}

std::string scores(const sim::LeaveOneOut& result, const Terminal& out) {
  std::vector<Column> columns{{"source"}, {"times", Align::kRight}};
  for (const char* way : {"fitted", "run out", "cell out", "source out"}) {
    columns.push_back({way, Align::kRight});
    columns.push_back({"worst", Align::kRight});
  }
  Table table(std::move(columns));
  for (const auto& [source, score] : result.by_source) table.add_row(score_row(source, score));
  table.add_rule();
  table.add_row(score_row("all", result.all));
  return table.render(out);
}

std::string constants(const profiles::HeldOutRecord& record, const Terminal& out) {
  Table table({{"constant"},
               {"fitted", Align::kRight},
               {"run out", Align::kRight},
               {"source out", Align::kRight}});
  const auto range = [](const std::array<double, 2>& r) {
    return fmt::format("{:.4g} to {:.4g}", r[0], r[1]);
  };
  for (const profiles::MovedConstant& constant : record.constants) {
    table.add_row({constant.name, fmt::format("{:.4g}", constant.value), range(constant.run_out),
                   range(constant.source_out)});
  }
  return table.render(out);
}

std::string every_row(const sim::LeaveOneOut& result, const Terminal& out) {
  Table table({{"id"},
               {"time, s", Align::kRight},
               {"fitted, %", Align::kRight},
               {"run out, %", Align::kRight},
               {"source out, %", Align::kRight},
               {"in interval"}});
  for (const sim::LeftOutRow& row : result.rows) {
    std::vector<Cell> cells{row.id, fmt::format("{:.5g}", row.measured_s)};
    for (const double error : row.error) cells.emplace_back(fmt::format("{:+.1f}", 100 * error));
    cells.emplace_back(row.inside[0] ? "yes" : "no",
                       row.inside[0] ? Style::kGreen : Style::kYellow);
    table.add_row(std::move(cells));
  }
  return table.render(out);
}

Json score_json(const sim::LeaveOneOutScore& score, sim::HeldOut way) {
  const sim::ErrorScore& errors = score.time[static_cast<std::size_t>(way)];
  return {{"n", errors.n},
          {"mape", errors.mape},
          {"median", errors.median},
          {"worst", errors.worst},
          {"interval",
           {{"n", errors.n},
            {"inside", score.inside[static_cast<std::size_t>(way) - 1]},
            {"cells", score.cells},
            {"share_of_cells", score.cells_inside[static_cast<std::size_t>(way) - 1]}}}};
}

Json way_json(const sim::LeaveOneOut& result, double level, sim::HeldOut way) {
  Json json = score_json(result.all, way);
  json["interval"]["level"] = level;
  json["by_source"] = Json::object();
  for (const auto& [source, score] : result.by_source) {
    json["by_source"][source] = score_json(score, way);
  }
  return json;
}

}  // namespace

std::string leave_one_out_text(const sim::LeaveOneOut& result,
                               const profiles::HeldOutRecord& record, bool rows,
                               const Terminal& out) {
  const auto heading = [&](std::string_view text) {
    return fmt::format("\n{}\n", paint(out, Style::kBold, text));
  };
  std::string text;
  if (rows) text += heading("Every time, held out") + every_row(result, out);
  text += heading(
      "Iteration time, constants fitted again to all, without the run, its cell, its source; "
      "means");
  text += scores(result, out);
  const sim::LeaveOneOutScore& all = result.all;
  const std::int64_t n = all.time[0].n;
  const auto share = [n](std::int64_t inside) {
    return n > 0 ? percent(static_cast<double>(inside) / static_cast<double>(n)) : std::string("-");
  };
  text += paragraph(
      fmt::format(
          "Of {} times that are not suspect {} lie inside the {:.0f} % interval made without the "
          "run, {} inside the one made without its cell (its source's runs of its model on its "
          "GPU), {} inside the one made without its source. With each of the {} cells counted "
          "once, "
          "as the intervals are made, that is {}, {} and {}. By simulation the rule covers {} of "
          "new "
          "cells.",
          n, share(all.inside[0]), 100 * record.level, share(all.inside[1]), share(all.inside[2]),
          all.cells, percent(all.cells_inside[0]), percent(all.cells_inside[1]),
          percent(all.cells_inside[2]), percent(record.simulated_coverage)),
      out);
  if (record.peaks > 0) {
    text += paragraph(
        fmt::format(
            "Of {} measured peaks {} lie inside the {:.0f} % interval of memory made without "
            "the run, {} inside the one of software that nobody measured, made without "
            "its source.",
            record.peaks, record.peaks_run_out, 100 * record.level, record.peaks_source_out),
        out);
  }
  text += heading("The fitted constants, and how far one run or one source moves them");
  text += constants(record, out);
  return text;
}

Json leave_one_out_json(const sim::LeaveOneOut& result, const profiles::HeldOutRecord& record) {
  Json json{{"leave_one_out", way_json(result, record.level, sim::HeldOut::kRow)},
            {"leave_cell_out", way_json(result, record.level, sim::HeldOut::kCell)},
            {"leave_source_out", way_json(result, record.level, sim::HeldOut::kSource)},
            {"interval_coverage",
             {{"level", record.level},
              {"simulated", record.simulated_coverage},
              {"memory",
               {{"n", record.peaks},
                {"run_out", record.peaks_run_out},
                {"source_out", record.peaks_source_out}}}}}};
  Json& run_out = json["leave_one_out"];
  run_out["constants"] = Json::array();
  for (const profiles::MovedConstant& constant : record.constants) {
    run_out["constants"].push_back({{"name", constant.name},
                                    {"value", constant.value},
                                    {"held_out", constant.run_out},
                                    {"source_held_out", constant.source_out}});
  }
  run_out["rows"] = Json::array();
  for (const sim::LeftOutRow& row : result.rows) {
    run_out["rows"].push_back({{"id", row.id},
                               {"predicted_iter_time_s", row.predicted_s},
                               {"in_sample_error", row.error[0]},
                               {"time_error", row.error[1]},
                               {"cell_held_out_error", row.error[2]},
                               {"source_held_out_error", row.error[3]},
                               {"inside_interval", row.inside[0]}});
  }
  return json;
}

}  // namespace shardwright::cli
