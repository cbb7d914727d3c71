// SPDX-License-Identifier: Apache-2.0
// Copies and sums of flat arrays.
//
// Every element is computed alone, so these give the same bits however an array is cut into shards.
#pragma once

#include <span>

#include "kernels/bf16.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// out = in, rounded to nearest even where `To` is narrower. Sizes must agree.
template <class From, class To>
void cast(Parallel& parallel, std::span<const From> in, std::span<To> out);

/// sum += in, one fp32 addition an element (rounded once more where the sum is bf16).
template <class In, class Sum>
void accumulate(Parallel& parallel, std::span<const In> in, std::span<Sum> sum);

/// out = (adds ? out : 0) + the sum of inputs of out's size, a power of two of them, as a binary
/// tree over neighbours: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). Sums are fp32; every one but
/// the last is rounded to `In`, so a subtree that was folded before gives the same bits. `out` may
/// be one of the inputs when it does not add.
template <class In, class Out>
void fold_tree(Parallel& parallel, std::span<const void* const> inputs, std::span<Out> out,
               bool adds);

}  // namespace shardwright::kernels::host
