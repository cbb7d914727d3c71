// SPDX-License-Identifier: Apache-2.0
// Copies and sums of flat arrays, and the gradient norm.
//
// Every element is computed alone, so these give the same bits however an array is cut into shards.
#pragma once

#include <span>

#include "kernels/bf16.h"
#include "kernels/exact_sum.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// out = in, rounded to nearest even where `To` is narrower. Sizes must agree.
template <class From, class To>
void cast(Parallel& parallel, std::span<const From> in, std::span<To> out);

/// sum += in, one fp32 addition an element (rounded once more where the sum is bf16).
template <class In, class Sum>
void accumulate(Parallel& parallel, std::span<const In> in, std::span<Sum> sum);

/// The exact sum of squares; its square root over all shards is the gradient norm.
template <class T>
ExactSum sum_of_squares(Parallel& parallel, std::span<const T> x);

}  // namespace shardwright::kernels::host
