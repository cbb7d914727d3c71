// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/layernorm.h"

#include <cmath>

namespace shardwright::kernels::reference {

LayerNorm layernorm_forward(const std::vector<double>& x, const std::vector<double>& weight,
                            const std::vector<double>& bias, double eps) {
  const std::size_t cols = weight.size();
  const auto count = static_cast<double>(cols);
  LayerNorm result;
  for (std::size_t start = 0; start < x.size(); start += cols) {
    double sum = 0, squares = 0;
    for (std::size_t c = 0; c < cols; ++c) sum += x[start + c];
    const double mean = sum / count;
    for (std::size_t c = 0; c < cols; ++c) squares += std::pow(x[start + c] - mean, 2);
    const double rstd = 1.0 / std::sqrt(squares / count + eps);
    for (std::size_t c = 0; c < cols; ++c) {
      result.y.push_back((x[start + c] - mean) * rstd * weight[c] + (bias.empty() ? 0 : bias[c]));
    }
    result.rstd.push_back(rstd);
    result.mean.push_back(mean);
  }
  return result;
}

LayerNormGradient layernorm_backward(const std::vector<double>& x,
                                     const std::vector<double>& weight, const LayerNorm& forward,
                                     const std::vector<double>& d_y) {
  const std::size_t cols = weight.size();
  const auto count = static_cast<double>(cols);
  LayerNormGradient result{{}, std::vector<double>(cols, 0.0)};
  for (std::size_t row = 0; row < forward.rstd.size(); ++row) {
    const std::size_t start = row * cols;
    const double rstd = forward.rstd[row], mean = forward.mean[row];
    // Every y of the row depends on rstd and on the mean; rstd changes with x as
    // -rstd^3 (x - mean) / cols, the mean as 1 / cols (through which rstd does not change).
    double d_rstd = 0, d_mean = 0;
    for (std::size_t c = 0; c < cols; ++c) {
      d_rstd += d_y[start + c] * weight[c] * (x[start + c] - mean);
      d_mean -= d_y[start + c] * weight[c] * rstd;
    }
    for (std::size_t c = 0; c < cols; ++c) {
      const double slope = -std::pow(rstd, 3) * (x[start + c] - mean) / count;
      result.d_x.push_back(d_y[start + c] * weight[c] * rstd + d_rstd * slope + d_mean / count);
      result.d_weight[c] += d_y[start + c] * (x[start + c] - mean) * rstd;
    }
  }
  return result;
}

}  // namespace shardwright::kernels::reference
