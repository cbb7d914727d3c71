// SPDX-License-Identifier: Apache-2.0
// Puts intervals into a prediction: of its time by what is known of such runs (conformal.h), of its
// memory by how far published peaks were off, and from that the verdict whether it fits.
#pragma once

#include <string>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/prediction.h"

namespace shardwright::sim {

/// Half-width of the logarithm of the time, for a run of `source` (empty: nobody whose runs are
/// published). Reads times, extrapolated inputs and allocator retries of `prediction`; sets its
/// novelty.
double published_half_width(Prediction& prediction, const Model& model,
                            const profiles::Profile& profile, const std::string& source);

/// Time's interval of this half-width, memory's interval and verdict.
void set_intervals(Prediction& prediction, const profiles::Profile& profile, double half_width);

/// Memory's alone: of these half-widths of the logarithm of what is reserved.
void set_memory_interval(MemoryPrediction& memory, const profiles::MemoryWidths& widths);

}  // namespace shardwright::sim
