// SPDX-License-Identifier: Apache-2.0
// RMSNorm over the rows of a matrix or over the heads inside packed tokens (qwen3's QK norm).
//
// y = x / sqrt(mean(x^2) + eps) * weight, computed in fp32 and rounded once. Forward saves
// rstd = 1 / sqrt(...) per row. Sums along a row run over 32 interleaved partial sums; the weight's
// gradient is summed over rows as bias_gradient (kernels/host/linear.h) says.
#pragma once

#include "kernels/bf16.h"
#include "kernels/host/linear.h"
#include "kernels/host/matrix.h"
#include "kernels/host/rows.h"

namespace shardwright::kernels::host {

/// y may be x. rstd has rows.count() elements. `offset` is added to the weight: gemma keeps weights
/// as their difference from 1.
template <class T>
void rmsnorm_forward(Parallel& parallel, const Rows& rows, const T* x, const T* weight, double eps,
                     T* y, float* rstd, double offset = 0);

/// d_x = the gradient of x, plus d_residual when it is not null: the gradient that reached the same
/// x past the norm. d_x may be d_y or d_residual. All buffers have the layout of `rows`, but the
/// tokens of x may be `x_stride` elements apart (0: as the others); the workspace holds
/// column_sum_workspace_floats(rows.cols) floats.
template <class T, class G>
void rmsnorm_backward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                      const float* rstd, const T* d_y, const T* d_residual, T* d_x, G* d_weight,
                      float* workspace, std::int64_t x_stride = 0, double offset = 0,
                      Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
