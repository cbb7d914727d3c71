// SPDX-License-Identifier: Apache-2.0
// LayerNorm over the rows of a matrix: y = (x - mean) / sqrt(variance + eps) * weight + bias.
//
// Computed in fp32 and rounded once; the variance is that of the row, not an estimate for others
// (1 / cols). Forward saves mean and rstd = 1 / sqrt(...) per row. Sums run as rmsnorm.h says. The
// gradient of the bias is that of any bias (bias_gradient in kernels/host/linear.h).
#pragma once

#include "kernels/bf16.h"
#include "kernels/host/linear.h"
#include "kernels/host/matrix.h"
#include "kernels/host/rows.h"

namespace shardwright::kernels::host {

/// Statistics of rows, rows.count() elements each.
struct LayerNormStatistics {
  float* rstd = nullptr;
  float* mean = nullptr;
};

/// y may be x; `bias` may be null.
template <class T>
void layernorm_forward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                       const T* bias, double eps, T* y, const LayerNormStatistics& statistics);

/// As rmsnorm_backward (kernels/host/rmsnorm.h).
template <class T, class G>
void layernorm_backward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                        const LayerNormStatistics& statistics, const T* d_y, const T* d_residual,
                        T* d_x, G* d_weight, float* workspace, Store mode = Store::kOverwrite);

}  // namespace shardwright::kernels::host
