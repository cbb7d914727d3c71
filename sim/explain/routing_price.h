// SPDX-License-Identifier: Apache-2.0
// What it costs that tokens do not choose experts equally often: the same plan with forced balance,
// held beside.
#pragma once

#include "sim/predict.h"

namespace shardwright::sim {

/// Of a prediction of `predictor`; none of models without experts, of experts with a capacity and
/// of plans that force balance.
std::optional<RoutingPrice> routing_price(Predictor& predictor, const Prediction& prediction);

}  // namespace shardwright::sim
