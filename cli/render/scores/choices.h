// SPDX-License-Identifier: Apache-2.0
// How good choices among measured layouts would have been, as `validate` shows it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/score/validation.h"

namespace shardwright::cli {

/// Empty where no layouts can be compared. The groups with the largest regret, all of them with
/// `rows`, and what they come to.
std::string choices_text(const sim::ChoiceScore& score, bool rows, const Terminal& out);
/// {groups, kendall_tau, regret_mean, regret_worst, random_regret_mean, by_group}.
nlohmann::ordered_json choices_json(const sim::ChoiceScore& score);

}  // namespace shardwright::cli
