// SPDX-License-Identifier: Apache-2.0
// Oracle for RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row, in double.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright::kernels::reference {

struct RmsNorm {
  std::vector<double> y;     // [rows, cols]
  std::vector<double> rstd;  // [rows]
};
RmsNorm rmsnorm_forward(const std::vector<double>& x, const std::vector<double>& weight,
                        double eps);

struct RmsNormGradient {
  std::vector<double> d_x;
  std::vector<double> d_weight;
};
/// By the chain rule from the saved rstd.
RmsNormGradient rmsnorm_backward(const std::vector<double>& x, const std::vector<double>& weight,
                                 const std::vector<double>& rstd, const std::vector<double>& d_y);

}  // namespace shardwright::kernels::reference
