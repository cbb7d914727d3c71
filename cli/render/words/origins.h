// SPDX-License-Identifier: Apache-2.0
// Where the numbers of a prediction come from, how sure they are and what would change them: a few
// lines for whoever signs. Each value's own source is in `inspect cluster` and `inspect gpu`.
#pragma once

#include <string>
#include <vector>

#include "sim/predict.h"

namespace shardwright::cli {

struct NumberOrigin {
  std::string what;   // "kernels", "network", "scale", "interval", "memory", "price", "change"
  std::string words;  // one sentence or more
};

/// In the order of the page. What plays no part in this prediction (a network inside one node) is
/// left out.
std::vector<NumberOrigin> number_origins(const profiles::Profile& profile,
                                         const sim::Prediction& prediction);

}  // namespace shardwright::cli
