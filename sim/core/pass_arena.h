// SPDX-License-Identifier: Apache-2.0
// The arena of a pipeline's stage: places follow from when tensors live in the step.
//
// Tensors of the compute stream are placed first-fit in the order in which the host issues what
// acquires them, until what compute has waited for lets go of them. Messages lie apart in slots of
// one size, and one that is sent keeps its slot through the next pass, under zbv until the next
// message of its channel.
#pragma once

#include "sim/core/arena.h"

namespace shardwright {

constexpr Bytes aligned(Bytes bytes) {
  return round_up(bytes, kArenaAlignment);
}

/// Of a schedule with passes.
ArenaPlan plan_pass_arena(const Schedule& schedule);

}  // namespace shardwright
