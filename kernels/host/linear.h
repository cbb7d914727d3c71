// SPDX-License-Identifier: Apache-2.0
// Linear layers with weights in the Hugging Face layout, W[out, in].
//
// The gradient of a micro-batch is always written on its own, never added to the one before: sums
// over micro-batches belong to `accumulate`, because W ranks that add their gradients in rank order
// must give the same bits as one rank that adds W micro-batches.
#pragma once

#include "kernels/host/matmul.h"

namespace shardwright::kernels::host {

/// y[n, out] = x[n, in] W^T.
template <class T>
void linear_forward(Parallel& parallel, Matrix<const T> x, Matrix<const T> w, Matrix<T> y) {
  matmul<T, T, T>(parallel, Layout::kNT, x, w, y);
}

/// dx[n, in] = dy[n, out] W. With kAdd the product joins what other consumers of x left there.
template <class T>
void linear_input_gradient(Parallel& parallel, Matrix<const T> d_y, Matrix<const T> w,
                           Matrix<T> d_x, Store mode = Store::kOverwrite) {
  matmul<T, T, T>(parallel, Layout::kNN, d_y, w, d_x, mode);
}

/// dW[out, in] = dy[n, out]^T x[n, in]; G is the gradient's own type.
template <class T, class G>
void linear_weight_gradient(Parallel& parallel, Matrix<const T> d_y, Matrix<const T> x,
                            Matrix<G> d_w) {
  matmul<T, T, G>(parallel, Layout::kTN, d_y, x, d_w);
}

/// y += bias, row by row.
template <class T>
void bias_forward(Parallel& parallel, const T* bias, Matrix<T> y);

/// dbias[out] = the sum of dy over rows: 32 blocks of rows, each summed in ascending order in fp32,
/// then the blocks in ascending order. The workspace holds column_sum_workspace_floats(out) floats.
template <class T, class G>
void bias_gradient(Parallel& parallel, Matrix<const T> d_y, G* d_bias, float* workspace);

/// Sums over rows are made of this many partial sums, whatever the number of rows or threads.
inline constexpr std::int64_t kRowBlocks = 32;
constexpr std::int64_t column_sum_workspace_floats(std::int64_t cols) {
  return kRowBlocks * cols;
}

/// First row of block `index` out of kRowBlocks.
constexpr std::int64_t row_block_begin(std::int64_t rows, std::int64_t index) {
  return rows * index / kRowBlocks;
}

/// out[cols] = the sum of the kRowBlocks rows of `partial`, in order.
template <class G>
void sum_row_blocks(Parallel& parallel, const float* partial, std::int64_t cols, G* out);

}  // namespace shardwright::kernels::host
