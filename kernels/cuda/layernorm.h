// SPDX-License-Identifier: Apache-2.0
// LayerNorm over the rows of a matrix on CUDA (kernels/host/layernorm.h is the same on the
// processor). The gradient of the bias is column_sums.h's, and has to be taken first, as that of
// the weight is, because d_x may overwrite d_y.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/matrix.h"
#include "kernels/host/rows.h"

namespace shardwright::kernels::cuda {

using host::LayerNormStatistics;

/// y may be x; `bias` may be null.
template <class T>
void layernorm_forward(cudaStream_t stream, const host::Rows& rows, const T* x, const T* weight,
                       const T* bias, double eps, T* y, const LayerNormStatistics& statistics);

/// As rmsnorm_backward.
template <class T, class G>
void layernorm_backward(cudaStream_t stream, const host::Rows& rows, const T* x, const T* weight,
                        const LayerNormStatistics& statistics, const T* d_y, const T* d_residual,
                        T* d_x, G* d_weight, float* workspace,
                        host::Store mode = host::Store::kOverwrite);

}  // namespace shardwright::kernels::cuda
