// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/validation.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

std::string signed_percent(double fraction) {
  return fmt::format("{:+.1f} %", 100 * fraction);
}

std::vector<Cell> summary_row(const std::string& name, const sim::ValidationSummary& summary) {
  std::vector<Cell> cells{name};
  add_score(cells, summary.time);
  add_score(cells, summary.memory);
  cells.emplace_back(fmt::format("{}", summary.wrong_outcomes));
  return cells;
}

std::string by_source(const sim::Validation& validation, const Terminal& out) {
  std::vector<Column> columns = score_columns("source");
  columns.push_back({"misfit", Align::kRight});
  Table table(std::move(columns));
  for (const auto& [source, summary] : validation.by_source) {
    table.add_row(summary_row(source, summary));
  }
  table.add_rule();
  table.add_row(summary_row("all", validation.all));
  return table.render(out);
}

std::string speedups(const sim::Validation& validation, const Terminal& out) {
  Table table({{"model"},
               {"GPUs", Align::kRight},
               {"seq", Align::kRight},
               {"ckpt", Align::kRight},
               {"YaFSDP", Align::kRight},
               {"error", Align::kRight},
               {"FSDP1", Align::kRight},
               {"error", Align::kRight},
               {"faster by", Align::kRight},
               {"predicted", Align::kRight},
               {"points", Align::kRight}});
  int within = 0;
  for (const sim::SpeedupPair& pair : validation.speedups) {
    const sim::ValidatedRow& yafsdp = validation.rows[pair.yafsdp];
    const sim::ValidatedRow& fsdp1 = validation.rows[pair.fsdp1];
    const double points = 100 * (pair.predicted - pair.measured);
    const bool good = std::abs(points) <= 3;
    within += good;
    const Plan& plan = yafsdp.row.plan;
    table.add_row({yafsdp.row.model.name,
                   fmt::format("{}", plan.gpus),
                   fmt::format("{}", plan.seq_len),
                   fmt::format("{}", plan.ckpt_layers),
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
  Table table({{"id"},
               {"model"},
               {"GPUs", Align::kRight},
               {"strategy"},
               {"sequences", Align::kRight},
               {"time, s", Align::kRight},
               {"model", Align::kRight},
               {"off, %", Align::kRight},
               {"GiB", Align::kRight},
               {"model", Align::kRight},
               {"off, %", Align::kRight},
               {"fits"}});
  const auto hundredths = [](double fraction) { return fmt::format("{:+.1f}", 100 * fraction); };
  for (const sim::ValidatedRow& row : validation.rows) {
    const Plan& plan = row.row.plan;
    std::vector<Cell> cells{
        row.row.id, row.row.model.name, fmt::format("{}", plan.gpus),
        std::string(name_of(plan.strategy)),
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
  Table table({{"constant"},
               {"source"},
               {"fitted", Align::kRight},
               {"prior", Align::kRight},
               {"others get"}});
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
  return fmt::format("Software that does not ship is predicted as what it resembles, in {} {}: {}.",
                     runs, runs == 1 ? "run" : "runs", fmt::join(pairs, ", "));
}

}  // namespace

std::vector<Column> score_columns(std::string subject) {
  std::vector<Column> columns{{std::move(subject)}};
  for (const char* what : {"times", "peaks"}) {
    for (const char* title : {what, "mean", "median", "worst"})
      columns.push_back({title, Align::kRight});
  }
  return columns;
}

void add_score(std::vector<Cell>& cells, const sim::ErrorScore& score) {
  cells.emplace_back(fmt::format("{}", score.n));
  for (const double error : {score.mape, score.median, score.worst}) {
    cells.emplace_back(score.n > 0 ? percent(error) : "");
  }
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
  Table table({{"strategy"},
               {"model"},
               {"published", Align::kRight},
               {"predicted", Align::kRight},
               {"error", Align::kRight}});
  for (const sim::LayerPeriod& period : periods) {
    table.add_row({std::string(name_of(period.row.plan.strategy)), period.row.model.name,
                   fmt::format("{:.1f} ms", 1e3 * period.measured_s),
                   fmt::format("{:.1f} ms", 1e3 * period.predicted_s),
                   signed_percent(period.predicted_s / period.measured_s - 1)});
  }
  return heading(out, "One layer of backward, against published timelines") + table.render(out);
}

std::string kernel_score_text(const std::string& what, const sim::KernelScore& score,
                              const Terminal& out) {
  Table table({{"kernels"},
               {"n", Align::kRight},
               {"mean", Align::kRight},
               {"median", Align::kRight},
               {"p90", Align::kRight}});
  const auto add = [&table](const std::string& name, const profiles::ErrorSummary& errors) {
    if (errors.n == 0) return;
    table.add_row({name, fmt::format("{}", errors.n), percent(errors.mape), percent(errors.median),
                   percent(errors.p90)});
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

}  // namespace shardwright::cli
