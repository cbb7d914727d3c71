// SPDX-License-Identifier: Apache-2.0
// Why not the others: the best plan of every strategy that was not chosen, ranks sharing the same
// as the choice does, or, of one that does not
// fit at all, the plan that comes closest.
#pragma once

#include <optional>
#include <vector>

#include "tuner/search/search.h"

namespace shardwright::tuner {

struct OtherStrategy {
  Strategy strategy = Strategy::kYafsdp;
  std::optional<Found> best;         // none: no plan fits
  std::optional<Judgement> closest;  // where none fits
  double cost = 0;                   // score of its best against the choice's, minus 1
};

/// Those with a plan that fits first, the best of them foremost; then by what they lack.
std::vector<OtherStrategy> other_strategies(Search& search, const Space& space,
                                            const Found& choice);

}  // namespace shardwright::tuner
