// SPDX-License-Identifier: Apache-2.0
// Biases of linear layers, and sums over rows. (The products are matmul.h's, weights W[out, in].)
//
// The gradient of a micro-batch is always finished before it is added to the one before (kAdd),
// because W ranks that add their gradients in rank order must give the same bits as one rank that
// adds W micro-batches.
#pragma once

#include "kernels/host/matmul.h"

namespace shardwright::kernels::host {

/// y += bias, row by row.
template <class T>
void bias_forward(Parallel& parallel, const T* bias, Matrix<T> y);

/// dbias[out] = the sum of dy over rows: 32 blocks of rows, each summed in ascending order in fp32,
/// then the blocks in ascending order. The workspace holds column_sum_workspace_floats(out) floats.
template <class T, class G>
void bias_gradient(Parallel& parallel, Matrix<const T> d_y, G* d_bias, float* workspace,
                   Store mode = Store::kOverwrite);

/// Sums over rows are made of this many partial sums, whatever the number of rows or threads.
inline constexpr std::int64_t kRowBlocks = 32;
constexpr std::int64_t column_sum_workspace_floats(std::int64_t cols) {
  return kRowBlocks * cols;
}

/// First row of block `index` out of kRowBlocks.
constexpr std::int64_t row_block_begin(std::int64_t rows, std::int64_t index) {
  return rows * index / kRowBlocks;
}

/// out[cols] = the sum of the kRowBlocks rows of `partial`, in order; kAdd: added to what is there.
template <class G>
void sum_row_blocks(Parallel& parallel, const float* partial, std::int64_t cols, G* out,
                    Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
