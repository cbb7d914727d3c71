// SPDX-License-Identifier: Apache-2.0
// How a plan is model-parallel, in a few words.
#pragma once

#include <string>

#include "sim/core/plan.h"

namespace shardwright::cli {

/// "tp 8, pp 8 x 4, cp 2, dp 8", with what only such plans choose; empty where nothing is divided.
std::string model_parallel_words(const Plan& plan);

/// The same in as few letters as a table has room for: "tp8 pp8x4 cp2".
std::string short_layout(const Plan& plan);

}  // namespace shardwright::cli
