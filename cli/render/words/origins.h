// SPDX-License-Identifier: Apache-2.0
// Where the numbers of a prediction come from, how sure they are and what would change them: a few
// lines for whoever signs. Each value's own source is in `inspect cluster` and `inspect gpu`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"
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

// Why an interval is as wide as it is, in words: what is new about a run, what that adds to the
// half-width, and which measurement would take it away.

struct NoveltyWords {
  std::string_view axis;
  std::string what;     // the class of the run on that axis
  double adds = 0;      // of the logarithm; axes add up as squares
  std::string measure;  // what would take it away
};

/// The widest first; axes that add nothing are left out.
std::vector<NoveltyWords> novelty_words(const profiles::Profile& profile,
                                        const sim::Prediction& prediction);

}  // namespace shardwright::cli
