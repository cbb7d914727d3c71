// SPDX-License-Identifier: Apache-2.0
// What the network makes of a schedule's operations, for ranks that have none: the streams of
// virtual clocks (exec/host/stream_clocks.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/schedule.h"

namespace shardwright::sim {

/// By operation of `schedule`, the one of `stage`: how long collectives take from when the last
/// rank has joined, and messages from when they leave; 0 of a receive, which ends when its message
/// is there. Empty: the operation is none of the network.
std::vector<std::optional<Nanoseconds>> network_times(const Schedule& schedule, std::int64_t stage,
                                                      const profiles::Profile& profile);

}  // namespace shardwright::sim
