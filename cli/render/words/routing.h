// SPDX-License-Identifier: Apache-2.0
// What uneven experts cost, in words and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/job.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// Empty where experts are balanced or there are none.
std::string routing_sentence(const sim::Job& inputs, const sim::Prediction& prediction);
/// Of a prediction with a RoutingPrice.
nlohmann::ordered_json routing_json(const sim::Job& inputs, const sim::Prediction& prediction);

}  // namespace shardwright::cli
