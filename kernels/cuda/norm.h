// SPDX-License-Identifier: Apache-2.0
// RMSNorm and LayerNorm over rows on CUDA, of a matrix or of the heads inside packed tokens, the
// gradient of biases, and the sums over rows that gradients of both are: made of partial sums in
// ascending order, whose number depends on the shape alone.
//
// Norms are fp32 and rounded once. The backward pass reads x and d_y once where rows are long; else
// twice, and kernels that sum the weight's gradient over rows run first, because d_x may overwrite
// d_y (so the gradient of LayerNorm's bias, which is that of any bias, has to be taken before).
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

template <class T>
void norm_forward(cudaStream_t stream, const host::NormForward<T>& norm);

/// d_weight[cols] and the gradient of x. The workspace holds norm_partial_sums(rows, cols) * cols
/// floats (sim/core/workspace.h).
template <class T, class G>
void norm_backward(cudaStream_t stream, const host::NormBackward<T>& norm, G* d_weight,
                   float* workspace, host::Store mode = host::Store::kOverwrite);

/// d_bias[cols] = the sum of d_y over rows. The workspace holds kPartialSums * cols floats.
template <class T, class G>
void bias_gradient(cudaStream_t stream, host::Matrix<const T> d_y, G* d_bias, float* workspace,
                   host::Store mode = host::Store::kOverwrite);

}  // namespace shardwright::kernels::cuda
