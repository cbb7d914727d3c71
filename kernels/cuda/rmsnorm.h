// SPDX-License-Identifier: Apache-2.0
// RMSNorm over rows on CUDA: of a matrix, or of the heads inside packed tokens.
//
// y = x / sqrt(mean(x^2) + eps) * weight in fp32, rounded once. The backward pass reads x and d_y
// twice: kernels that sum the weight's gradient over rows run first, because d_x may overwrite d_y.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/stream.h"
#include "kernels/host/matrix.h"
#include "kernels/host/rows.h"

namespace shardwright::kernels::cuda {

/// y may be x. rstd has rows.count() elements. `offset` is added to the weight (gemma).
template <class T>
void rmsnorm_forward(cudaStream_t stream, const host::Rows& rows, const T* x, const T* weight,
                     double eps, T* y, float* rstd, double offset = 0);

/// d_x = the gradient of x, plus d_residual when it is not null: the gradient that reached the same
/// x past the norm. d_x may be d_y or d_residual. All buffers have the layout of `rows`, but the
/// tokens of x may be `x_stride` elements apart (0: as the others). The workspace holds
/// norm_workspace_floats(rows.count(), rows.cols) floats.
template <class T, class G>
void rmsnorm_backward(cudaStream_t stream, const host::Rows& rows, const T* x, const T* weight,
                      const float* rstd, const T* d_y, const T* d_residual, T* d_x, G* d_weight,
                      float* workspace, std::int64_t x_stride = 0, double offset = 0,
                      host::Store mode = host::Store::kOverwrite);

}  // namespace shardwright::kernels::cuda
