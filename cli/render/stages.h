// SPDX-License-Identifier: Apache-2.0
// Stages of a step, the pipeline's bubble, communication by group, and what the step loses.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// What nodes that are not equally fast add to the step.
double variation_s(const sim::Prediction& prediction);

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

}  // namespace shardwright::cli
