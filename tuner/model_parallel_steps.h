// SPDX-License-Identifier: Apache-2.0
// Why this parallel layout: every size of the chosen plan halved and doubled, the batch kept, and
// predicted anew.
//
// The ranks that a neighbour gains or loses, data parallelism gives or takes; chunks, micro-batch
// and recomputation are the best for the neighbour, because that is what one would run. A
// neighbour that cuts something unevenly does not exist.
#pragma once

#include <vector>

#include "tuner/knob_steps.h"
#include "tuner/model_parallel_search.h"

namespace shardwright::tuner {

std::vector<KnobStep> model_parallel_steps(const Model& model,
                                           const std::vector<Scenario>& scenarios,
                                           const Request& request, Extent extent,
                                           const SearchOptions& options, const Found& choice);

}  // namespace shardwright::tuner
