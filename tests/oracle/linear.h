// SPDX-License-Identifier: Apache-2.0
// Oracle for linear layers and embeddings: plain loops in double, nothing clever.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright::kernels::reference {

/// y[n, out] = x[n, in] w[out, in]^T.
std::vector<double> linear_forward(const std::vector<double>& x, const std::vector<double>& w,
                                   std::int64_t n, std::int64_t in, std::int64_t out);
/// dx[n, in] = dy[n, out] w[out, in].
std::vector<double> linear_input_gradient(const std::vector<double>& d_y,
                                          const std::vector<double>& w, std::int64_t n,
                                          std::int64_t in, std::int64_t out);
/// dw[out, in] = dy[n, out]^T x[n, in].
std::vector<double> linear_weight_gradient(const std::vector<double>& d_y,
                                           const std::vector<double>& x, std::int64_t n,
                                           std::int64_t in, std::int64_t out);
/// y[n, c] + bias[c].
std::vector<double> bias_forward(const std::vector<double>& y, const std::vector<double>& bias);
/// The sum of dy[n, c] over rows.
std::vector<double> bias_gradient(const std::vector<double>& d_y, std::int64_t cols);

/// out[i] = table[tokens[i]], rows of `cols`.
std::vector<double> embedding_forward(const std::vector<double>& table, std::int64_t cols,
                                      const std::vector<std::int32_t>& tokens);
/// d_table[vocab, cols]: the sums of d_out rows by token.
std::vector<double> embedding_backward(const std::vector<double>& d_out, std::int64_t cols,
                                       const std::vector<std::int32_t>& tokens, std::int64_t vocab);

}  // namespace shardwright::kernels::reference
