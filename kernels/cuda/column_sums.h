// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of a matrix on CUDA, made of partial sums in ascending order, whose number
// depends on the shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"
#include "kernels/host/matrix.h"

namespace shardwright::kernels::cuda {

inline constexpr std::int64_t kColumnSumBlocks = 32;
constexpr std::int64_t column_sum_workspace_floats(std::int64_t cols) {
  return kColumnSumBlocks * cols;
}

/// Norms of long rows leave so many partial sums of their weight's gradient, or one a row.
inline constexpr std::int64_t kNormRowBlocks = 256;
/// What the gradient of a norm needs.
constexpr std::int64_t norm_workspace_floats(std::int64_t rows, std::int64_t cols) {
  return std::max(kColumnSumBlocks, std::min(rows, kNormRowBlocks)) * cols;
}

/// out[cols] = the sum of the rows of partial[blocks, cols], in a fixed order, rounded once; kAdd:
/// added to what is there. For many blocks; sum_row_blocks is for few.
template <class G>
void sum_many_row_blocks(cudaStream_t stream, const float* partial, std::int64_t blocks,
                         std::int64_t cols, G* out, host::Store mode);

/// out[cols] = the sum of the rows of partial[kColumnSumBlocks, cols], in order, rounded once;
/// kAdd: added to what is there.
template <class G>
void sum_row_blocks(cudaStream_t stream, const float* partial, std::int64_t cols, G* out,
                    host::Store mode = host::Store::kOverwrite);

/// y += bias, row by row.
template <class T>
void bias_forward(cudaStream_t stream, const T* bias, host::Matrix<T> y);

/// d_bias[cols] = the sum of d_y over rows. The workspace holds column_sum_workspace_floats(cols)
/// floats.
template <class T, class G>
void bias_gradient(cudaStream_t stream, host::Matrix<const T> d_y, G* d_bias, float* workspace,
                   host::Store mode = host::Store::kOverwrite);

}  // namespace shardwright::kernels::cuda
