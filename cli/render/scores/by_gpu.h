// SPDX-License-Identifier: Apache-2.0
// The errors of `validate` by GPU: what a buyer of one kind wants to know first.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/score/validation.h"

namespace shardwright::cli {

/// Times and peaks of each GPU that the runs were on: n, mean, median, worst.
std::string by_gpu_text(const sim::Validation& validation, const Terminal& out);
/// {"a100-80g": {"time": {n, mape, median, worst}, "memory": {...}}}.
nlohmann::ordered_json by_gpu_json(const sim::Validation& validation);

}  // namespace shardwright::cli
