// SPDX-License-Identifier: Apache-2.0
// How `predict` shows what it found: in words and tables for people, as the contract's JSON for
// programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/job.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// One prediction in full.
std::string prediction_text(const sim::Job& inputs, const sim::Prediction& prediction,
                            const Terminal& out);

/// Several strategies side by side; the first is held against the others.
std::string comparison_text(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions,
                            const Terminal& out);

/// The object of the contract.
nlohmann::ordered_json prediction_json(const sim::Job& inputs, const sim::Prediction& prediction);

/// {"schema", "predictions": [...], "time_saved_by_first": [...]}: by the first against each.
nlohmann::ordered_json comparison_json(const sim::Job& inputs,
                                       const std::vector<sim::Prediction>& predictions);

}  // namespace shardwright::cli
