// SPDX-License-Identifier: Apache-2.0
// Which software an answer is about, and what stands behind it: the first thing to read.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// "The steps are those of torch-compile, checked against 6 published runs on h100-80g; never on
/// b200."
std::string software_sentence(const profiles::Profile& profile);

/// Whose software a strategy is, as "FSDP2 on torch-compile", or "megatron-core".
std::string strategy_software(const Plan& plan, const Stack& stack);

/// Where strategies of Megatron are priced with the kernels of another framework; else empty.
std::string foreign_strategy_sentence(const std::vector<sim::Prediction>& predictions,
                                      const Stack& stack);

}  // namespace shardwright::cli
