// SPDX-License-Identifier: Apache-2.0
// How `predict --explain` puts it: one sentence for each part of the step, then a table of changes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/explain/explain.h"

namespace shardwright::cli {

/// What bounds each part, and what the best changes buy; full sentences.
std::vector<std::string> explanation_sentences(const sim::Explanation& explanation);

std::string explanation_text(const sim::Explanation& explanation, const Terminal& out);
/// The same, what the step loses, and the rule of thumb of memory.
nlohmann::ordered_json explanation_json(const Model& model, const sim::Explanation& explanation);

}  // namespace shardwright::cli
