// SPDX-License-Identifier: Apache-2.0
// The errors of `validate` by framework, the newest release first.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/score/validation.h"

namespace shardwright::cli {

/// A line for each framework and, below it, for each year of its releases.
std::string by_framework_text(const std::vector<sim::FrameworkScore>& scores, const Terminal& out);
/// [{"framework", "newest", "n", "mape", "median", "worst", "interval": {n, inside},
/// "source_left_out": {n, mape, median, worst}, "years": [{"year", "releases": [..], as above}]}].
nlohmann::ordered_json by_framework_json(const std::vector<sim::FrameworkScore>& scores);

}  // namespace shardwright::cli
