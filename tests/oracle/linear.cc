// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/linear.h"

namespace shardwright::kernels::reference {
namespace {

using Numbers = std::vector<double>;

std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

Numbers zeros(std::int64_t count) {
  return Numbers(static_cast<std::size_t>(count), 0.0);
}

}  // namespace

Numbers linear_forward(const Numbers& x, const Numbers& w, std::int64_t n, std::int64_t in,
                       std::int64_t out) {
  Numbers y = zeros(n * out);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t k = 0; k < in; ++k) y[at(i, out, o)] += x[at(i, in, k)] * w[at(o, in, k)];
    }
  }
  return y;
}

Numbers linear_input_gradient(const Numbers& d_y, const Numbers& w, std::int64_t n, std::int64_t in,
                              std::int64_t out) {
  Numbers d_x = zeros(n * in);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t k = 0; k < in; ++k) {
        d_x[at(i, in, k)] += d_y[at(i, out, o)] * w[at(o, in, k)];
      }
    }
  }
  return d_x;
}

Numbers linear_weight_gradient(const Numbers& d_y, const Numbers& x, std::int64_t n,
                               std::int64_t in, std::int64_t out) {
  Numbers d_w = zeros(out * in);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t k = 0; k < in; ++k) {
        d_w[at(o, in, k)] += d_y[at(i, out, o)] * x[at(i, in, k)];
      }
    }
  }
  return d_w;
}

Numbers bias_forward(const Numbers& y, const Numbers& bias) {
  Numbers result = y;
  for (std::size_t i = 0; i < result.size(); ++i) result[i] += bias[i % bias.size()];
  return result;
}

Numbers bias_gradient(const Numbers& d_y, std::int64_t cols) {
  Numbers d_bias = zeros(cols);
  for (std::size_t i = 0; i < d_y.size(); ++i) d_bias[i % d_bias.size()] += d_y[i];
  return d_bias;
}

Numbers embedding_forward(const Numbers& table, std::int64_t cols,
                          const std::vector<std::int32_t>& tokens) {
  Numbers out;
  for (const std::int32_t token : tokens) {
    for (std::int64_t c = 0; c < cols; ++c) out.push_back(table[at(token, cols, c)]);
  }
  return out;
}

Numbers embedding_backward(const Numbers& d_out, std::int64_t cols,
                           const std::vector<std::int32_t>& tokens, std::int64_t vocab) {
  Numbers d_table = zeros(vocab * cols);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::int64_t c = 0; c < cols; ++c) {
      d_table[at(tokens[i], cols, c)] += d_out[at(static_cast<std::int64_t>(i), cols, c)];
    }
  }
  return d_table;
}

}  // namespace shardwright::kernels::reference
