// SPDX-License-Identifier: Apache-2.0
// Why this division: every size of the chosen plan halved and doubled, the batch kept, and
// predicted anew.
//
// The ranks that a neighbour gains or loses, data parallelism gives or takes; chunks, micro-batch
// and recomputation are the best for the neighbour, because that is what one would run. A
// neighbour that cuts something unevenly does not exist.
#pragma once

#include <vector>

#include "tuner/divided_search.h"
#include "tuner/knob_steps.h"

namespace shardwright::tuner {

std::vector<KnobStep> divided_steps(const Model& model, const std::vector<Scenario>& scenarios,
                                    const Request& request, Extent extent,
                                    const SearchOptions& options, const Found& choice);

}  // namespace shardwright::tuner
