// SPDX-License-Identifier: Apache-2.0
// Random attention problems for the tests of every implementation on CUDA, and the comparison with
// the oracle.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/attention.h"

namespace shardwright::kernels::testing {

using Bits = std::vector<BFloat16>;
using Numbers = std::vector<double>;

/// Queries, keys and values of random numbers, packed, and a gradient of the output.
struct RandomAttention {
  cuda::AttentionProblem problem;
  std::vector<std::int32_t> first_key;
  Data<BFloat16> q, k, v, d_out;
  Bits packed;

  explicit RandomAttention(AttentionShape shape, std::vector<std::int32_t> first = {})
      : first_key(std::move(first)) {
    shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    problem = {.shape = shape,
               .packed_stride = q_cols + 2 * kv_cols,
               .out_stride = q_cols,
               .documents = !first_key.empty()};
    q = random_data<BFloat16>(1, shape.tokens() * q_cols, 2.0);
    k = random_data<BFloat16>(2, shape.tokens() * kv_cols, 2.0);
    v = random_data<BFloat16>(3, shape.tokens() * kv_cols);
    d_out = random_data<BFloat16>(4, shape.tokens() * q_cols);
    packed.resize(static_cast<std::size_t>(shape.tokens() * problem.packed_stride));
    place(q.typed, 0, q_cols);
    place(k.typed, q_cols, kv_cols);
    place(v.typed, q_cols + kv_cols, kv_cols);
  }

  /// One of the three out of a packed array.
  Bits part(const Bits& from, std::int64_t column, std::int64_t cols) const {
    Bits result;
    for (std::int64_t t = 0; t < problem.shape.tokens(); ++t) {
      const auto begin = from.begin() + t * problem.packed_stride + column;
      result.insert(result.end(), begin, begin + cols);
    }
    return result;
  }

 private:
  void place(const Bits& rows, std::int64_t column, std::int64_t cols) {
    for (std::int64_t t = 0; t < problem.shape.tokens(); ++t) {
      std::copy_n(rows.begin() + t * cols, cols,
                  packed.begin() + t * problem.packed_stride + column);
    }
  }
};

/// Output, statistics and packed gradients. What is not written stays NaN.
inline auto compute(cuda::Attention& attention, const RandomAttention& p) {
  const cuda::AttentionProblem& problem = p.problem;
  EXPECT_EQ(attention.refusal(problem), "");
  const AttentionShape& s = problem.shape;
  const OnDevice<BFloat16> packed(p.packed), d_out(p.d_out.typed);
  std::optional<OnDevice<std::int32_t>> first_key;
  if (problem.documents) first_key.emplace(p.first_key);
  const std::int32_t* first = first_key ? first_key->data() : nullptr;
  const OnDevice<BFloat16> out(s.tokens() * problem.out_stride);
  const OnDevice<BFloat16> d_packed(s.tokens() * problem.packed_stride);
  const OnDevice<float> statistics(s.tokens() * s.heads);
  const Bytes room = std::max(attention.forward_workspace_bytes(problem),
                              attention.backward_workspace_bytes(problem));
  const OnDevice<float> workspace((room + 3) / 4);
  attention.forward(
      problem, {packed.data(), first, out.data(), statistics.data(), workspace.data()}, nullptr);
  attention.backward(problem,
                     {packed.data(), first, out.data(), statistics.data(), d_out.data(),
                      d_packed.data(), workspace.data()},
                     nullptr);
  workspace.get();  // checks that nothing behind it was written
  return Outputs(out.get(), statistics.get(), d_packed.get());
}

inline void expect_same_direction(const Bits& actual, const Numbers& expected,
                                  const std::string& what) {
  Numbers numbers;
  for (const BFloat16 value : actual) numbers.push_back(to_float(value));
  const double length = dot(expected, expected);
  const double cosine = dot(numbers, expected) / std::sqrt(dot(numbers, numbers) * length);
  EXPECT_GT(cosine, 0.9999) << what;
}

template <class Result>
void expect_matches(const RandomAttention& p, const Result& result, const std::string& what) {
  const AttentionShape& s = p.problem.shape;
  const auto forward =
      reference::attention_forward(s, p.q.exact, p.k.exact, p.v.exact, p.first_key);
  const auto gradient =
      reference::attention_backward(s, p.q.exact, p.k.exact, p.v.exact, forward, p.d_out.exact);
  // Outputs are rounded to bf16 once, after probabilities were rounded to bf16.
  expect_close(result.template get<0>(), forward.out, 0x1p-7, what + " out");
  expect_close(result.template get<1>(), forward.lse, 1e-5, what + " statistics");
  const std::int64_t q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
  const auto check = [&](std::int64_t column, std::int64_t cols, const Numbers& expected,
                         const char* name) {
    const Bits actual = p.part(result.template get<2>(), column, cols);
    if (dot(expected, expected) == 0) {
      // A query that sees one key: d_scores is a difference of equal sums.
      for (const BFloat16 value : actual)
        EXPECT_LT(std::abs(to_float(value)), 1e-5) << what << name;
      return;
    }
    // The backward pass starts from the rounded output and rounds dS, too.
    expect_close(actual, expected, 0x1p-6, what + name);
    expect_same_direction(actual, expected, what + name);
  };
  check(0, q_cols, gradient.d_q, " d_q");
  check(q_cols, kv_cols, gradient.d_k, " d_k");
  check(q_cols + kv_cols, kv_cols, gradient.d_v, " d_v");
}

inline std::string name_of(const AttentionShape& s) {
  return "B " + std::to_string(s.batch) + " T " + std::to_string(s.seq) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " D " +
         std::to_string(s.head_dim);
}

}  // namespace shardwright::kernels::testing
