// SPDX-License-Identifier: Apache-2.0
// Whether a machine has room for the copies of its ranks' state that checkpoints are written from.
//
// They are pinned, and as large as parameters and moments: a machine with less memory than that
// would meet Linux's killer, which says nothing, minutes or hours after the start.
#pragma once

#include <optional>

#include "exec/communicator.h"
#include "sim/core/units.h"

namespace shardwright::exec {

/// Throws Error on all ranks where those of one machine copy more, `mine` on this one, than is
/// `left` there. Who does not know what is left says nothing.
void require_host_room(Communicator& world, Bytes mine, std::optional<Bytes> left);

}  // namespace shardwright::exec
