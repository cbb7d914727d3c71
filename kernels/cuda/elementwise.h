// SPDX-License-Identifier: Apache-2.0
// Casts, sums and copies of flat arrays on CUDA. T, In, Out and the like are float or BFloat16.
//
// Arithmetic is fp32 and every element is computed alone, so the results are the bits of
// kernels/host/elementwise.h, however an array is cut. Calls only enqueue; they throw Error when
// CUDA refuses a launch. Arrays may begin anywhere; chunks of 16 bytes are used where all arrays
// are displaced alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// out = in, rounded to nearest even where `To` is narrower.
template <class From, class To>
void cast(cudaStream_t stream, const From* in, To* out, std::int64_t count);

/// sum += in.
template <class In, class Sum>
void accumulate(cudaStream_t stream, const In* in, Sum* sum, std::int64_t count);

inline constexpr std::size_t kMaxFoldInputs = 256;
/// out = (adds ? out : 0) + inputs[0] + inputs[1] + ..., in this order and rounded once. The list
/// is copied; `out` may be one of the inputs when it does not add. Throws Error beyond
/// kMaxFoldInputs.
template <class In, class Out>
void fold(cudaStream_t stream, std::span<const void* const> inputs, Out* out, bool adds,
          std::int64_t count);

/// The same of a power of two of inputs as a binary tree over neighbours: ((0 + 1) + (2 + 3)) + ...
/// Every sum but the last is rounded to `In`, so a subtree that was folded before gives the same
/// bits; what is there is added last. Throws Error for another number of inputs.
template <class In, class Out>
void fold_tree(cudaStream_t stream, std::span<const void* const> inputs, Out* out, bool adds,
               std::int64_t count);

/// Fills with signalling NaNs.
template <class T>
void poison(cudaStream_t stream, T* data, std::int64_t count);

/// Rows of `row_bytes` bytes.
void copy_rows(cudaStream_t stream, const void* from, std::int64_t from_stride_bytes, void* to,
               std::int64_t to_stride_bytes, std::int64_t rows, std::int64_t row_bytes);

}  // namespace shardwright::kernels::cuda
