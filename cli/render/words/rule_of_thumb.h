// SPDX-License-Identifier: Apache-2.0
// The rule of thumb of the field, 16 to 24 bytes a parameter, beside what is predicted: where it
// agrees, and what it leaves out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/core/model.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// Full sentences.
std::vector<std::string> rule_of_thumb_sentences(const Model& model,
                                                 const sim::Prediction& prediction);
nlohmann::ordered_json rule_of_thumb_json(const Model& model, const sim::Prediction& prediction);

}  // namespace shardwright::cli
