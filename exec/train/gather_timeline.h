// SPDX-License-Identifier: Apache-2.0
// The spans of all ranks in one timeline.
#pragma once

#include "exec/communicator.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

/// `mine`, with its own rank's memory, and the spans of all ranks, on every rank. All call it
/// together.
Timeline gather_timeline(Communicator& world, Timeline mine);

}  // namespace shardwright::exec
