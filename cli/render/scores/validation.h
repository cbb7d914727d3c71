// SPDX-License-Identifier: Apache-2.0
// How `validate` shows its scores: tables for people, one JSON document for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/score/kernel_scores.h"
#include "sim/score/validation.h"
#include "tuner/size/whole_run.h"

namespace shardwright::cli {

/// Columns of a table of scores by `subject`: times, then peaks, each n, mean, median and worst;
/// and the cells of one of its rows.
std::vector<Column> score_columns(std::string subject);
std::vector<Cell> score_cells(const std::string& name, const sim::ValidationSummary& summary);
/// {n, mape, median, worst}.
nlohmann::ordered_json score_json(const sim::ErrorScore& score);

/// By source, then YaFSDP against FSDP1 pair by pair; with `rows` also every row.
std::string validation_text(const sim::Validation& validation, bool rows, const Terminal& out);

/// The document of the contract, without the kernels' scores.
nlohmann::ordered_json validation_json(const sim::Validation& validation);

/// The published timelines: how long one layer of backward takes.
std::string layer_periods_text(const std::vector<sim::LayerPeriod>& periods, const Terminal& out);
nlohmann::ordered_json layer_periods_json(const std::vector<sim::LayerPeriod>& periods);

/// One table: products or collectives, overall and by GPU. `what` titles it.
std::string kernel_score_text(const std::string& what, const sim::KernelScore& score,
                              const Terminal& out);
nlohmann::ordered_json kernel_score_json(const sim::KernelScore& score);

// How `validate --leave-one-out` shows honest errors beside those in sample.

/// Errors by source, four ways, and how far the constants move; with `rows` also every row.
std::string leave_one_out_text(const sim::LeaveOneOut& result,
                               const profiles::HeldOutRecord& record, bool rows,
                               const Terminal& out);

/// What the summary gains: leave_one_out, leave_cell_out, leave_source_out, interval_coverage.
nlohmann::ordered_json leave_one_out_json(const sim::LeaveOneOut& result,
                                          const profiles::HeldOutRecord& record);

// How `validate --whole-runs` shows published trainings beside what would have been predicted.

/// One row a training, then how many lie inside and what teams reached.
std::string whole_runs_text(const tuner::WholeRunScore& score,
                            const profiles::Production& production, const Terminal& out);

/// The contract's list of rows.
nlohmann::ordered_json whole_runs_json(const tuner::WholeRunScore& score);
/// The contract's summary.whole_runs.
nlohmann::ordered_json whole_runs_summary_json(const tuner::WholeRunScore& score,
                                               const profiles::Production& production);

// Runs that gpu_check timed, beside what is predicted for them today.

std::string gpu_results_text(const sim::GpuResults& results, const Terminal& out);
/// {"gpu", "when", "cluster", "time", "after_measure", "memory", "runs": [...], "skipped": [...]}.
nlohmann::ordered_json gpu_results_json(const sim::GpuResults& results);

}  // namespace shardwright::cli
