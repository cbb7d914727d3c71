// SPDX-License-Identifier: Apache-2.0
// How `validate --whole-runs` shows published trainings beside what would have been predicted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "tuner/runs/whole_run.h"

namespace shardwright::cli {

/// One row a training, then how many lie inside and what teams reached.
std::string whole_runs_text(const tuner::WholeRunScore& score,
                            const profiles::Production& production, const Terminal& out);

/// The contract's list of rows.
nlohmann::ordered_json whole_runs_json(const tuner::WholeRunScore& score);
/// The contract's summary.whole_runs.
nlohmann::ordered_json whole_runs_summary_json(const tuner::WholeRunScore& score,
                                               const profiles::Production& production);

}  // namespace shardwright::cli
