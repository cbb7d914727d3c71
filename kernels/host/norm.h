// SPDX-License-Identifier: Apache-2.0
// RMSNorm and LayerNorm over the rows of a matrix or over the heads inside packed tokens (qwen3's
// QK norm), biases of linear layers, and the sums over rows that gradients of both are.
//
// Norms are computed in fp32 and rounded once. Sums along a row run over 32 interleaved partial
// sums. Sums over rows are made of kPartialSums blocks of rows, each summed in ascending order in
// fp32, then the blocks in ascending order.
//
// The gradient of a micro-batch is always finished before it is added to the one before (kAdd),
// because W ranks that add their gradients in rank order must give the same bits as one rank that
// adds W micro-batches.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "sim/core/workspace.h"

namespace shardwright::kernels::host {

template <class T>
void norm_forward(Parallel& parallel, const NormForward<T>& norm);

/// d_weight[cols] and the gradient of x. The gradient of LayerNorm's bias is that of any bias. The
/// workspace holds kPartialSums * cols floats.
template <class T, class G>
void norm_backward(Parallel& parallel, const NormBackward<T>& norm, G* d_weight, float* workspace,
                   Store mode = Store::kOverwrite);

/// y += bias, row by row.
template <class T>
void bias_forward(Parallel& parallel, const T* bias, Matrix<T> y);

/// d_bias[cols] = the sum of d_y over rows. The workspace holds kPartialSums * cols floats.
template <class T, class G>
void bias_gradient(Parallel& parallel, Matrix<const T> d_y, G* d_bias, float* workspace,
                   Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
