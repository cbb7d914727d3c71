// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/rmsnorm.h"

#include <cmath>

namespace shardwright::kernels::reference {

RmsNorm rmsnorm_forward(const std::vector<double>& x, const std::vector<double>& weight,
                        double eps) {
  const std::size_t cols = weight.size();
  RmsNorm result;
  for (std::size_t start = 0; start < x.size(); start += cols) {
    double squares = 0;
    for (std::size_t c = 0; c < cols; ++c) squares += x[start + c] * x[start + c];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::size_t c = 0; c < cols; ++c) result.y.push_back(x[start + c] * rstd * weight[c]);
    result.rstd.push_back(rstd);
  }
  return result;
}

RmsNormGradient rmsnorm_backward(const std::vector<double>& x, const std::vector<double>& weight,
                                 const std::vector<double>& rstd, const std::vector<double>& d_y) {
  const std::size_t cols = weight.size();
  RmsNormGradient result{{}, std::vector<double>(cols, 0.0)};
  for (std::size_t row = 0; row < rstd.size(); ++row) {
    const std::size_t start = row * cols;
    // d rstd / d x_c = -rstd^3 x_c / cols, and every y of the row depends on rstd.
    double d_rstd = 0;
    for (std::size_t c = 0; c < cols; ++c) d_rstd += d_y[start + c] * weight[c] * x[start + c];
    const double slope = -std::pow(rstd[row], 3) / static_cast<double>(cols);
    for (std::size_t c = 0; c < cols; ++c) {
      result.d_x.push_back(d_y[start + c] * weight[c] * rstd[row] + d_rstd * slope * x[start + c]);
      result.d_weight[c] += d_y[start + c] * x[start + c] * rstd[row];
    }
  }
  return result;
}

}  // namespace shardwright::kernels::reference
