// SPDX-License-Identifier: Apache-2.0
// How `validate` shows its scores: tables for people, one JSON document for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/table.h"
#include "cli/render/text/terminal.h"
#include "sim/score/kernel_scores.h"
#include "sim/score/validation.h"

namespace shardwright::cli {

/// Columns of a table of scores by `subject`: times, then peaks, each n, mean, median and worst;
/// and a row's cells of one of the two.
std::vector<Column> score_columns(std::string subject);
void add_score(std::vector<Cell>& cells, const sim::ErrorScore& score);
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

}  // namespace shardwright::cli
