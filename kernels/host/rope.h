// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, in place, on query and key heads.
//
// Hugging Face's half-rotate order: element j of a head is paired with element j + pairs, so
// weights of Hugging Face models need no permutation. Elements beyond 2 pairs (partial rotary)
// stay.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "kernels/rope_table.h"

namespace shardwright::kernels::host {

enum class RopeDirection { kForward, kBackward };

/// Rotates every head by its token's angle; kBackward turns the gradient the other way. Token t has
/// position positions[t], or t % seq when positions is null (packed documents start again at 0).
/// Throws Error when a position lies outside the table.
template <class T>
void rope(Parallel& parallel, const Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, RopeDirection direction, T* x);

}  // namespace shardwright::kernels::host
