// SPDX-License-Identifier: Apache-2.0
// What a GPU holds beside live tensors: contexts and communicators, and what the framework's
// allocator keeps.
#pragma once

#include "profiles/profile.h"
#include "sim/core/plan.h"
#include "sim/memory/memory.h"

namespace shardwright::sim {

/// Contexts, libraries and communicators of a rank, that of data parallelism included.
Bytes runtime_bytes(const profiles::Profile& profile, const Plan& plan);

/// Whether what the framework reserves follows from the tensors that are alive; else its allocator
/// is replayed over the step.
bool knows_reserved(const Plan& plan, const Stack& stack);

/// What an allocator that is not replayed takes.
Bytes estimated_reserved_bytes(const MemoryPeak& allocated, const Stack& stack);

/// The same where the allocator is not to be replayed; else the least that it can take.
Bytes least_reserved_bytes(const MemoryPeak& allocated, const Plan& plan, const Stack& stack);

}  // namespace shardwright::sim
