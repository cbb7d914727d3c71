// SPDX-License-Identifier: Apache-2.0
// The exact sum of squares on CUDA, in the words of kernels/exact_sum.h.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"

namespace shardwright::kernels::cuda {

/// Adds the sum of squares of x to the ExactSum::kWords words, which are in device memory. Only
/// integers are added, so the sum is exact and the same in any order; a call adds less than 2^43 to
/// a word, which leaves room for a million calls (ExactSum::from_words carries).
template <class T>
void sum_of_squares(cudaStream_t stream, const T* x, std::int64_t count, std::int64_t* words);

}  // namespace shardwright::kernels::cuda
