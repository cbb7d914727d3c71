// The spans of all ranks in one timeline, and the memory that they kept alive.
#pragma once

#include "exec/communicator.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

/// `mine` with the spans of all other ranks, on every rank. All call it together.
Timeline gather_timeline(Communicator& world, Timeline mine);

/// Bytes alive over the step: what outlives it, and activations from the begin of the operation
/// that brings them to life to the end of the one they die with, as measured on one rank.
std::vector<MemorySample> memory_curve(const Schedule& schedule, const Timeline& timeline,
                                       std::int32_t rank);

}  // namespace shardwright::exec
