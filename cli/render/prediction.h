// SPDX-License-Identifier: Apache-2.0
// How `predict` shows what it found: in words and tables for people, as the contract's JSON for
// programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/prices/price.h"
#include "sim/explain/explain.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "tuner/runs/run_cost.h"

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

// Stages of a step, the pipeline's bubble, communication by group, and what the step loses.

/// A table of the stages and one of the groups, where there are several.
std::string stages_text(const sim::Prediction& prediction, const Terminal& out);

/// Adds "stages", "pipeline" and "exposed_communication_by_group", and the groups to
/// "communication_bytes".
void add_stages(const sim::Prediction& prediction, nlohmann::ordered_json& document);

/// What the step loses, largest first: bubble, communication that is waited for by group, host.
struct Loss {
  std::string what;
  double seconds = 0;
};
std::vector<Loss> losses_of(const sim::Prediction& prediction);
std::string losses_text(const sim::Prediction& prediction, const Terminal& out);
nlohmann::ordered_json losses_json(const sim::Prediction& prediction);

// `predict --tokens`: the whole run of a plan, in days and dollars, beside its ideal steps.

struct WholeRunAnswer {
  tuner::RunConditions conditions;
  tuner::RunCost cost;
  profiles::Price price;  // on demand
  double tokens_per_step = 0;
  profiles::Energy energy;
  std::string gpu;  // whose power it is
};

std::string whole_run_text(const WholeRunAnswer& answer, const Terminal& out);
nlohmann::ordered_json whole_run_json(const WholeRunAnswer& answer);

// How `predict --jitter` is told: in a sentence, and as JSON.

std::string jitter_sentence(const sim::Jitter& jitter);
nlohmann::ordered_json jitter_json(const sim::Jitter& jitter);

}  // namespace shardwright::cli
