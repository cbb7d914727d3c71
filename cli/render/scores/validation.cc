// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/validation.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {

namespace {

std::string signed_percent(double fraction) {
  return fmt::format("{:+.1f} %", 100 * fraction);
}

std::vector<Cell> summary_row(const std::string& name, const sim::ValidationSummary& summary) {
  std::vector<Cell> cells = score_cells(name, summary);
  cells.emplace_back(summary.wrong_outcomes);
  return cells;
}

std::string by_source(const sim::Validation& validation, const Terminal& out) {
  std::vector<Column> columns = score_columns("source");
  columns.push_back(right("misfit"));
  Table table(std::move(columns));
  for (const auto& [source, summary] : validation.by_source) {
    table.add_row(summary_row(source, summary));
  }
  table.add_rule();
  table.add_row(summary_row("all", validation.all));
  return table.render(out);
}

std::string speedups(const sim::Validation& validation, const Terminal& out) {
  Table table({"model", right("GPUs"), right("seq"), right("ckpt"), right("YaFSDP"), right("error"),
               right("FSDP1"), right("error"), right("faster by"), right("predicted"),
               right("points")});
  int within = 0;
  for (const sim::SpeedupPair& pair : validation.speedups) {
    const sim::ValidatedRow& yafsdp = validation.rows[pair.yafsdp];
    const sim::ValidatedRow& fsdp1 = validation.rows[pair.fsdp1];
    const double points = 100 * (pair.predicted - pair.measured);
    const bool good = std::abs(points) <= 3;
    within += good;
    const Plan& plan = yafsdp.row.plan;
    table.add_row({yafsdp.row.model.name,
                   plan.gpus,
                   plan.seq_len,
                   plan.ckpt_layers,
                   fmt::format("{:.2f} s", *yafsdp.row.iteration_s),
                   signed_percent(*yafsdp.time_error),
                   fmt::format("{:.2f} s", *fsdp1.row.iteration_s),
                   signed_percent(*fsdp1.time_error),
                   percent(pair.measured),
                   percent(pair.predicted),
                   {fmt::format("{:+.1f}", points), good ? Style::kGreen : Style::kYellow}});
  }
  return table.render(out) +
         fmt::format("{} of {} speedups within 3 points.\n", within, validation.speedups.size());
}

std::string every_row(const sim::Validation& validation, const Terminal& out) {
  Table table({"id", "model", right("GPUs"), "strategy", right("sequences"), right("time, s"),
               right("model"), right("off, %"), right("GiB"), right("model"), right("off, %"),
               "fits"});
  const auto hundredths = [](double fraction) { return fmt::format("{:+.1f}", 100 * fraction); };
  for (const sim::ValidatedRow& row : validation.rows) {
    const Plan& plan = row.row.plan;
    std::vector<Cell> cells{
        row.row.id, row.row.model.name, plan.gpus, name_of(plan.strategy),
        fmt::format("{}x{}x{}", plan.seq_len, plan.micro_batch, plan.grad_accum)};
    const bool predicted = row.skipped.empty();
    if (!predicted) cells.back() = {"skipped", Style::kYellow};
    const double seconds = row.prediction.time.iteration_s;
    cells.emplace_back(row.time_error ? fmt::format("{:.5g}", *row.row.iteration_s) : "");
    cells.emplace_back(predicted ? fmt::format("{:.5g}", seconds) : "");
    cells.emplace_back(row.time_error ? hundredths(*row.time_error) : "");
    cells.emplace_back(row.memory_error ? fmt::format("{:.1f}", *row.row.peak_gib) : "");
    cells.emplace_back(predicted ? fmt::format("{:.1f}", row.predicted_peak_gib) : "");
    cells.emplace_back(row.memory_error ? hundredths(*row.memory_error) : "");
    cells.emplace_back(!predicted                   ? ""
                       : row.prediction.memory.fits ? "yes"
                                                    : "no",
                       row.outcome_right ? Style::kGreen : Style::kRed);
    table.add_row(std::move(cells));
  }
  return table.render(out);
}

std::string source_constants(const sim::Validation& validation, const Terminal& out) {
  Table table({"constant", "source", right("fitted"), right("prior"), "others get"});
  for (const sim::SourceConstant& constant : validation.source_constants) {
    table.add_row({constant.name, constant.source, fmt::format("{:.4g}", constant.value),
                   fmt::format("{:.4g}", constant.prior),
                   constant.applies_to_source_only ? "the prior" : "the fitted value"});
  }
  return table.render(out);
}

/// Which software stands for which that does not ship; empty: all of it ships.
std::string stand_ins(const sim::Validation& validation) {
  std::set<std::string> pairs;
  std::int64_t runs = 0;
  for (const sim::ValidatedRow& row : validation.rows) {
    if (row.row.stack_called.empty() || !row.skipped.empty()) continue;
    pairs.insert(fmt::format("{} as {}", row.row.stack_called, row.row.plan.stack));
    ++runs;
  }
  if (pairs.empty()) return {};
  return fmt::format("Software that does not ship is predicted as what it resembles, in {}: {}.",
                     counted(runs, "run"), fmt::join(pairs, ", "));
}

}  // namespace

std::vector<Column> score_columns(std::string subject) {
  std::vector<Column> columns{std::move(subject)};
  for (const char* what : {"times", "peaks"}) {
    for (const char* title : {what, "mean", "median", "worst"}) columns.push_back(right(title));
  }
  return columns;
}

std::vector<Cell> score_cells(const std::string& name, const sim::ValidationSummary& summary) {
  std::vector<Cell> cells{name};
  for (const sim::ErrorScore& score : {summary.time, summary.memory}) {
    cells.emplace_back(score.n);
    for (const double error : {score.mape, score.median, score.worst})
      cells.emplace_back(score.n > 0 ? percent(error) : "");
  }
  return cells;
}

std::string validation_text(const sim::Validation& validation, bool rows, const Terminal& out) {
  std::string text;
  if (rows) text += heading(out, "Every row") + every_row(validation, out);
  text += heading(out, "Errors by source: iteration time, then peak memory");
  text += by_source(validation, out);
  const sim::ValidationSummary& all = validation.all;
  text += paragraph(
      fmt::format("{} of {} measured times lie inside the predicted interval, and {} of {} peaks "
                  "inside theirs; {} of {} outcomes (fits or not) are wrong.",
                  all.inside_interval, all.time.n, all.inside_memory_interval, all.memory.n,
                  all.wrong_outcomes, all.predicted),
      out);
  if (all.suspect_time.n > 0) {
    text +=
        paragraph(fmt::format("Apart from these, {} times that another preset of the same table "
                              "contradicts: mean error {}, worst {}.",
                              all.suspect_time.n, percent(all.suspect_time.mape),
                              percent(all.suspect_time.worst)),
                  out);
  }
  if (const std::string words = stand_ins(validation); !words.empty()) {
    text += paragraph(words, out);
  }
  for (const auto& [reason, count] : validation.skipped_because) {
    text += fmt::format("Skipped {}: {}\n", count, reason);
  }
  if (!validation.speedups.empty()) {
    text += heading(out, "YaFSDP against FSDP1: published, and errors of the prediction");
    text += speedups(validation, out);
  }
  if (!validation.source_constants.empty()) {
    text += heading(out, "Fitted constants that runs of one source determine");
    text += source_constants(validation, out);
  }
  return text.substr(1);
}

std::string layer_periods_text(const std::vector<sim::LayerPeriod>& periods, const Terminal& out) {
  Table table({"strategy", "model", right("published"), right("predicted"), right("error")});
  for (const sim::LayerPeriod& period : periods) {
    table.add_row({name_of(period.row.plan.strategy), period.row.model.name,
                   fmt::format("{:.1f} ms", 1e3 * period.measured_s),
                   fmt::format("{:.1f} ms", 1e3 * period.predicted_s),
                   signed_percent(period.predicted_s / period.measured_s - 1)});
  }
  return heading(out, "One layer of backward, against published timelines") + table.render(out);
}

std::string kernel_score_text(const std::string& what, const sim::KernelScore& score,
                              const Terminal& out) {
  Table table({"kernels", right("n"), right("mean"), right("median"), right("p90")});
  const auto add = [&table](const std::string& name, const profiles::ErrorSummary& errors) {
    if (errors.n == 0) return;
    table.add_row(
        {name, errors.n, percent(errors.mape), percent(errors.median), percent(errors.p90)});
  };
  const auto add_group = [&add](const std::string& name, const sim::GroupScore& group) {
    add(name, group.all);
    if (group.by_gpu.size() < 2) return;
    for (const auto& [gpu, errors] : group.by_gpu) add(fmt::format("  {}", gpu), errors);
  };
  add_group("all", score.all);
  add_group("training size: m >= 2048, n and k >= 1024", score.training_size);
  add_group("of these, not contradicted by the table itself", score.training_size_consistent);
  return heading(out, what) + table.render(out);
}

namespace {

using Json = nlohmann::ordered_json;

std::vector<Cell> score_row(const std::string& name, const sim::LeaveOneOutScore& score) {
  std::vector<Cell> cells{name, score.time[0].n};
  for (const sim::ErrorScore& errors : score.time) {
    cells.emplace_back(percent(errors.mape));
    cells.emplace_back(percent(errors.worst));
  }
  return cells;
}

std::string scores(const sim::LeaveOneOut& result, const Terminal& out) {
  std::vector<Column> columns{"source", right("times")};
  for (const char* way : {"fitted", "run out", "cell out", "source out"}) {
    columns.push_back(right(way));
    columns.push_back(right("worst"));
  }
  Table table(std::move(columns));
  for (const auto& [source, score] : result.by_source) table.add_row(score_row(source, score));
  table.add_rule();
  table.add_row(score_row("all", result.all));
  return table.render(out);
}

std::string constants(const profiles::HeldOutRecord& record, const Terminal& out) {
  Table table({"constant", right("fitted"), right("run out"), right("source out")});
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
  Table table({"id", right("time, s"), right("fitted, %"), right("run out, %"),
               right("source out, %"), "in interval"});
  for (const sim::LeftOutRow& row : result.rows) {
    std::vector<Cell> cells{row.id, fmt::format("{:.5g}", row.measured_s)};
    for (const double error : row.error) cells.emplace_back(fmt::format("{:+.1f}", 100 * error));
    cells.emplace_back(row.inside[0] ? "yes" : "no",
                       row.inside[0] ? Style::kGreen : Style::kYellow);
    table.add_row(std::move(cells));
  }
  return table.render(out);
}

Json held_out_json(const sim::LeaveOneOutScore& score, sim::HeldOut way) {
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
  Json json = held_out_json(result.all, way);
  json["interval"]["level"] = level;
  json["by_source"] = Json::object();
  for (const auto& [source, score] : result.by_source) {
    json["by_source"][source] = held_out_json(score, way);
  }
  return json;
}

}  // namespace

std::string leave_one_out_text(const sim::LeaveOneOut& result,
                               const profiles::HeldOutRecord& record, bool rows,
                               const Terminal& out) {
  std::string text;
  if (rows) text += heading(out, "Every time, held out") + every_row(result, out);
  text += heading(
      out,
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
  text += heading(out, "The fitted constants, and how far one run or one source moves them");
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
  run_out["constants"] =
      json_list(record.constants, [&](const profiles::MovedConstant& constant) -> Json {
        return {{"name", constant.name},
                {"value", constant.value},
                {"held_out", constant.run_out},
                {"source_held_out", constant.source_out}};
      });
  run_out["rows"] = json_list(result.rows, [&](const sim::LeftOutRow& row) -> Json {
    return {{"id", row.id},
            {"predicted_iter_time_s", row.predicted_s},
            {"in_sample_error", row.error[0]},
            {"time_error", row.error[1]},
            {"cell_held_out_error", row.error[2]},
            {"source_held_out_error", row.error[3]},
            {"inside_interval", row.inside[0]}};
  });
  return json;
}

namespace {

using tuner::ScoredWholeRun;

Json coverage_json(const profiles::Coverage& coverage) {
  return {{"n", coverage.n}, {"inside", coverage.inside}, {"median_ratio", coverage.median_ratio}};
}

Json assumed_json(const tuner::IdealHours& ideal) {
  return {{"plan", ideal.plan ? Json(plan_to_json(*ideal.plan)) : Json(nullptr)},
          {"stack", text_or_null(ideal.stack)},
          {"cluster", text_or_null(ideal.cluster)},
          {"notes", ideal.assumed}};
}

Json row_json(const ScoredWholeRun& row) {
  Json json{{"id", row.run.id}, {"family", row.run.family}, {"tier", std::string(1, row.run.tier)}};
  if (!row.skipped.empty()) {
    for (const char* key : {"predicted_gpu_hours", "interval_gpu_hours", "published_gpu_hours",
                            "ideal_gpu_hours", "assumed", "inside"}) {
      json[key] = nullptr;
    }
    json["skipped"] = row.skipped;
    return json;
  }
  json["predicted_gpu_hours"] = row.gpu_hours;
  json["interval_gpu_hours"] = {row.interval_gpu_hours[0], row.interval_gpu_hours[1]};
  json["published_gpu_hours"] = row.run.gpu_hours;
  json["ideal_gpu_hours"] = row.ideal.gpu_hours;
  json["inside"] = row.inside;
  json["scored"] = row.run.scored();
  json["assumed"] = assumed_json(row.ideal);
  json["skipped"] = nullptr;
  return json;
}

std::string steps_cell(const tuner::IdealHours& ideal) {
  if (!ideal.plan) return "analytic";
  const Parallelism& parallel = ideal.plan->parallel;
  if (parallel.plain()) return fmt::format("{} {}", ideal.stack, name_of(ideal.plan->strategy));
  std::string text = ideal.stack;
  for (const auto& [name, size] :
       {std::pair{"tp", parallel.tp}, {"pp", parallel.pp}, {"ep", parallel.ep}}) {
    if (size > 1) text += fmt::format(" {} {}", name, size);
  }
  return text;
}

std::string thousand_hours(double hours) {
  const double k = hours / 1000;
  return k < 100 ? fmt::format("{:.3g}", k) : thousands(k);
}

void add_row(Table& table, const ScoredWholeRun& row) {
  const std::string tier(1, row.run.tier);
  if (!row.skipped.empty()) {
    table.add_row({row.run.id, tier, "", "", "", "", Cell("skipped", Style::kYellow), row.skipped});
    return;
  }
  const Cell inside = !row.run.scored() ? Cell("")
                      : row.inside      ? Cell("yes", Style::kGreen)
                                        : Cell("no", Style::kYellow);
  table.add_row({row.run.id, tier, thousand_hours(row.run.gpu_hours),
                 thousand_hours(row.ideal.gpu_hours), thousand_hours(row.gpu_hours),
                 fmt::format("{}-{}", thousand_hours(row.interval_gpu_hours[0]),
                             thousand_hours(row.interval_gpu_hours[1])),
                 inside, steps_cell(row.ideal)});
}

}  // namespace

std::string whole_runs_text(const tuner::WholeRunScore& score,
                            const profiles::Production& production, const Terminal& out) {
  Table table({"training", "tier", right("published"), right("ideal"), right("predicted"),
               right("interval"), "inside", "ideal steps by"});
  for (const ScoredWholeRun& row : score.runs) add_row(table, row);
  std::string text = heading(
      out, "Training runs, in thousand GPU hours: published GPU hours, ideal steps, predicted");
  text += table.render(out);
  const tuner::WholeRunSummary& all = score.summary;
  std::vector<std::string> sentences;
  sentences.push_back(
      fmt::format("Of {} trainings of tiers A and B, {} lie inside the interval of {:.0f} %, whose "
                  "upper end is "
                  "{:.2g} times the lower; predicted over published is {:.2f} in the middle.",
                  all.n, all.inside, 100 * production.level, all.median_width, all.median_ratio));
  const profiles::Coverage& held = production.family_out;
  sentences.push_back(fmt::format(
      "The factor was fitted on {} trainings; refitted without each family, {} of {} lay inside.",
      production.in_sample.n, held.inside, held.n));
  for (const auto& [generation, reached] : production.reached) {
    if (reached.n < 4) continue;
    sentences.push_back(
        fmt::format("{}: the middle half of {} trainings reached {:.0f} to {:.0f} % of the 16-bit "
                    "peak over the "
                    "whole run (6 N a token).",
                    generation, reached.n, 100 * reached.mfu[0], 100 * reached.mfu[2]));
  }
  return text + sentences_text(sentences, out);
}

Json whole_runs_json(const tuner::WholeRunScore& score) {
  return json_list(score.runs, [](const ScoredWholeRun& row) { return row_json(row); });
}

Json whole_runs_summary_json(const tuner::WholeRunScore& score,
                             const profiles::Production& production) {
  const tuner::WholeRunSummary& all = score.summary;
  return {{"n", all.n},
          {"inside", all.inside},
          {"median_ratio", all.median_ratio},
          {"median_width", all.median_width},
          {"level", production.level},
          {"fitted",
           {{"in_sample", coverage_json(production.in_sample)},
            {"family_left_out", coverage_json(production.family_out)}}}};
}

namespace {

/// What the framework reserves, of what it may.
double share_of_memory(const sim::MemoryPrediction& memory) {
  return static_cast<double>(memory.peak_reserved_bytes) /
         static_cast<double>(memory.usable_bytes - memory.runtime_bytes);
}

Json row_json(const sim::ValidatedRow& row) {
  const bool predicted = row.skipped.empty();
  const sim::TimePrediction& time = row.prediction.time;
  return {
      {"id", row.row.id},
      {"predicted_iter_time_s", predicted ? Json(time.iteration_s) : Json(nullptr)},
      {"measured_iter_time_s", or_null(row.row.iteration_s)},
      {"time_error", or_null(row.time_error)},
      {"predicted_peak_gib", predicted ? Json(row.predicted_peak_gib) : Json(nullptr)},
      {"measured_peak_gib", or_null(row.row.peak_gib)},
      {"memory_error", or_null(row.memory_error)},
      {"fits", predicted ? Json(row.prediction.memory.fits) : Json(nullptr)},
      {"memory_share", predicted ? Json(share_of_memory(row.prediction.memory)) : Json(nullptr)},
      {"outcome", row.row.out_of_memory ? "oom" : "ok"},
      {"skipped", text_or_null(row.skipped)},
      {"source", row.row.source},
      {"mem_kind", row.row.peak_gib ? Json(name_of(row.row.counter)) : Json(nullptr)},
      {"predicted_interval_s",
       predicted ? Json{time.interval_s[0], time.interval_s[1]} : Json(nullptr)},
      {"extrapolated", row.prediction.extrapolated},
      {"seen", predicted ? Json(name_of(time.novelty)) : Json(nullptr)},
      {"stack_called", text_or_null(row.row.stack_called)},
      {"suspect", text_or_null(row.row.suspect)},
      {"verdict", predicted ? Json(name_of(row.prediction.memory.verdict)) : Json(nullptr)}};
}

Json summary_json(const sim::ValidationSummary& summary) {
  return {
      {"time", score_json(summary.time)},
      {"memory", score_json(summary.memory)},
      {"outcome", {{"n", summary.predicted}, {"wrong", summary.wrong_outcomes}}},
      {"interval", {{"n", summary.time.n}, {"inside", summary.inside_interval}}},
      {"memory_interval", {{"n", summary.memory.n}, {"inside", summary.inside_memory_interval}}},
      {"suspect", score_json(summary.suspect_time)},
      {"skipped", summary.skipped}};
}

Json group_json(const sim::GroupScore& group) {
  Json result = errors_json(group.all);
  result["by_gpu"] = Json::object();
  for (const auto& [gpu, errors] : group.by_gpu) result["by_gpu"][gpu] = errors_json(errors);
  return result;
}

}  // namespace

Json score_json(const sim::ErrorScore& score) {
  return {{"n", score.n}, {"mape", score.mape}, {"median", score.median}, {"worst", score.worst}};
}

Json validation_json(const sim::Validation& validation) {
  Json document{{"schema", "shardwright.validation/1.0"},
                {"rows", json_list(validation.rows,
                                   [](const sim::ValidatedRow& row) { return row_json(row); })}};
  Json& summary = document["summary"] = summary_json(validation.all);
  summary["by_source"] = Json::object();
  for (const auto& [source, scores] : validation.by_source) {
    summary["by_source"][source] = summary_json(scores);
  }
  summary["constants_of_one_source"] =
      json_list(validation.source_constants, [&](const sim::SourceConstant& constant) -> Json {
        return {{"name", constant.name},
                {"source", constant.source},
                {"value", constant.value},
                {"prior", constant.prior},
                {"only_for_it", constant.applies_to_source_only}};
      });
  summary["skipped_because"] = validation.skipped_because;
  Json pairs = Json::array();
  std::int64_t within = 0;
  for (const sim::SpeedupPair& pair : validation.speedups) {
    within += std::abs(pair.predicted - pair.measured) <= 0.03;
    pairs.push_back({{"yafsdp", validation.rows[pair.yafsdp].row.id},
                     {"fsdp1", validation.rows[pair.fsdp1].row.id},
                     {"measured", pair.measured},
                     {"predicted", pair.predicted}});
  }
  summary["speedup"] = {
      {"n", validation.speedups.size()}, {"within_3_points", within}, {"pairs", std::move(pairs)}};
  return document;
}

Json layer_periods_json(const std::vector<sim::LayerPeriod>& periods) {
  return json_list(periods, [&](const sim::LayerPeriod& period) -> Json {
    return {{"id", period.row.id},
            {"strategy", name_of(period.row.plan.strategy)},
            {"measured_s", period.measured_s},
            {"predicted_s", period.predicted_s},
            {"error", period.predicted_s / period.measured_s - 1}};
  });
}

Json kernel_score_json(const sim::KernelScore& score) {
  Json result = group_json(score.all);
  if (score.training_size.all.n > 0) {
    result["training_size"] = group_json(score.training_size);
    result["training_size_consistent"] = group_json(score.training_size_consistent);
  }
  return result;
}

namespace {

std::string error_against(std::optional<double> predicted, double measured) {
  return predicted ? fmt::format("{:+.1f} %", 100 * (*predicted / measured - 1)) : "-";
}

}  // namespace

std::string gpu_results_text(const sim::GpuResults& results, const Terminal& out) {
  Table table({"model", right("GPUs"), right("measured"), right("predicted"), right("error"),
               right("then"), right("after measure"), "attention"});
  for (const sim::GpuRun& run : results.runs) {
    table.add_row({run.model, run.gpus, quantity(run.measured_s, "s"),
                   quantity(run.predicted_s, "s"), error_against(run.predicted_s, run.measured_s),
                   error_against(run.then_s, run.measured_s),
                   error_against(run.after_s, run.measured_s), run.attention});
  }
  std::string text = heading(out, fmt::format("Runs on {}, {}: measured against predictions for {}",
                                              results.gpu, results.when, results.cluster)) +
                     table.render(out);
  for (const std::string& why : results.skipped) text += fmt::format("not run: {}\n", why);
  return text;
}

nlohmann::ordered_json gpu_results_json(const sim::GpuResults& results) {
  nlohmann::ordered_json runs =
      json_list(results.runs, [&](const sim::GpuRun& run) -> nlohmann::ordered_json {
        return {{"model", run.model},
                {"gpus", run.gpus},
                {"attention", run.attention},
                {"measured_step_s", run.measured_s},
                {"predicted_step_s", run.predicted_s},
                {"error", run.error()},
                {"predicted_then_step_s", or_null(run.then_s)},
                {"predicted_after_measure_step_s", or_null(run.after_s)},
                {"peak_bytes", run.peak_bytes},
                {"predicted_peak_bytes", run.predicted_peak_bytes}};
      });
  return {{"gpu", results.gpu},
          {"when", results.when},
          {"cluster", results.cluster},
          {"time", score_json(results.time)},
          {"after_measure", score_json(results.after)},
          {"memory", score_json(results.memory)},
          {"runs", std::move(runs)},
          {"skipped", results.skipped}};
}

}  // namespace shardwright::cli
