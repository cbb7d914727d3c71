// SPDX-License-Identifier: Apache-2.0
// Whether parameters that several ranks hold are the same on all of them.
//
// Replicas start equal and take equal steps, so what differs has been changed by a processor, a
// memory or a link, and trains on in silence. Exact sums of squares are compared, which the device
// makes as fast as a gradient norm: a few bytes for each tensor, seldom more than a few for each
// rank. A sign alone that changed shows after the next step.
#pragma once

#include <cstdint>

#include "exec/executor.h"

namespace shardwright::exec {

/// All ranks call it together after step `step`. Throws Error on the ranks of a group in which
/// values differ, with the tensor and the ranks.
void compare_replicas(Executor& executor, std::int64_t step);

}  // namespace shardwright::exec
