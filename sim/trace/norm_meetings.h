// SPDX-License-Identifier: Apache-2.0
// When ranks have all come to the gradient norm of a measured step, in which they exchange numbers:
// what the norm lasts before, a rank waits for others.
#pragma once

#include <functional>
#include <map>

#include "sim/trace/step_trace.h"

namespace shardwright::sim {

/// By step and rank. The rank that comes last does not wait, so the shortest norm of a step is what
/// each of its ranks takes, at the end; of several kernels the last one waits.
std::map<LaneKey, Nanoseconds> norm_meetings(const Timeline& timeline,
                                             const std::function<bool(OpId)>& is_norm);

}  // namespace shardwright::sim
