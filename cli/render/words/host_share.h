// SPDX-License-Identifier: Apache-2.0
// Whether the host or the device bounds a step, in words and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/predict.h"

namespace shardwright::cli {

/// Empty where the host issues nothing.
std::string host_sentence(const sim::Prediction& prediction);
nlohmann::ordered_json host_json(const sim::Prediction& prediction);

}  // namespace shardwright::cli
