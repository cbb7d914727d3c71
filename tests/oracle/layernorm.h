// SPDX-License-Identifier: Apache-2.0
// Oracle for LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row, in
// double.
#pragma once

#include <vector>

namespace shardwright::kernels::reference {

struct LayerNorm {
  std::vector<double> y;           // [rows, cols]
  std::vector<double> rstd, mean;  // [rows]
};
/// An empty bias is none.
LayerNorm layernorm_forward(const std::vector<double>& x, const std::vector<double>& weight,
                            const std::vector<double>& bias, double eps);

struct LayerNormGradient {
  std::vector<double> d_x;
  std::vector<double> d_weight;
};
/// By the chain rule from the saved statistics.
LayerNormGradient layernorm_backward(const std::vector<double>& x,
                                     const std::vector<double>& weight, const LayerNorm& forward,
                                     const std::vector<double>& d_y);

}  // namespace shardwright::kernels::reference
