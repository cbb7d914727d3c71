// SPDX-License-Identifier: Apache-2.0
// Takes out of a space what cannot fit on a GPU, one value of a knob at a time.
//
// A strategy, shard group or batch is probed by the plans that use least memory with it: full
// recomputation, the fewest buffers, the smallest types that the space has. If not even the
// allocated memory of those fits, no plan with that value does. On large models this leaves a
// fraction of the space, and the same best plan.
#pragma once

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "tuner/space.h"

namespace shardwright::tuner {

/// Never empty: where nothing fits, what comes closest stays.
Space without_misfits(const Space& space, const Model& model, const profiles::Profile& profile);

}  // namespace shardwright::tuner
