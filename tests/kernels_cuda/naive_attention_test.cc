// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/attention.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class CudaNaiveAttention : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaNaiveAttention, Types);

struct Case {
  AttentionShape shape;
  std::int64_t gap;  // behind a token's heads
  bool documents;
};

/// Columns [first, first + count) of rows `stride` long.
std::vector<double> columns(const std::vector<double>& rows, std::int64_t stride,
                            std::int64_t first, std::int64_t count) {
  std::vector<double> result;
  for (std::int64_t at = first; at < std::ssize(rows); at += stride) {
    result.insert(result.end(), rows.begin() + at, rows.begin() + at + count);
  }
  return result;
}

TYPED_TEST(CudaNaiveAttention, MatchesTheOracle) {
  using T = TypeParam;
  const Case cases[] = {{{2, 9, 4, 2, 16, 0.25}, 0, false},
                        {{1, 17, 3, 1, 40, 0.158}, 7, true},
                        {{2, 1, 2, 2, 5, 0.4}, 0, false},
                        {{1, 6, 1, 1, 200, 0.07}, 3, true},
                        {{1, 13, 3, 1, 16, 0.5, 1.5}, 0, false},
                        {{2, 9, 6, 2, 16, 0.25, 0.0, true}, 0, true},
                        {{1, 9, 4, 2, 16, 0.25, 2.0, true}, 0, false}};
  const auto attention = make_naive_attention();
  for (const auto& [shape, gap, documents] : cases) {
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    const std::int64_t stride = q_cols + 2 * kv_cols + gap, out_stride = q_cols + gap;
    const AttentionProblem problem{shape, std::is_same_v<T, float> ? DType::kFp32 : DType::kBf16,
                                   stride, out_stride, documents};
    ASSERT_EQ(attention->refusal(problem), "");
    const auto packed = random_data<T>(1, shape.tokens() * stride);
    const auto d_out = random_data<T>(2, shape.tokens() * out_stride);
    std::vector<std::int32_t> first_key;
    for (std::int64_t t = 0; documents && t < shape.tokens(); ++t) {
      first_key.push_back(static_cast<std::int32_t>(t % shape.seq / 4 * 4));  // documents of four
    }
    const auto q = columns(packed.exact, stride, 0, q_cols);
    const auto k = columns(packed.exact, stride, q_cols, kv_cols);
    const auto v = columns(packed.exact, stride, q_cols + kv_cols, kv_cols);
    const auto expected = reference::attention_forward(shape, q, k, v, first_key);
    const auto gradient = reference::attention_backward(
        shape, q, k, v, expected, columns(d_out.exact, out_stride, 0, q_cols));

    // The backward pass gets the exact output, rounded.
    std::vector<T> out_typed(static_cast<std::size_t>(shape.tokens() * out_stride));
    for (std::size_t i = 0; i < expected.out.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(q_cols);
      out_typed[row * static_cast<std::size_t>(out_stride) + i % static_cast<std::size_t>(q_cols)] =
          from_float<T>(static_cast<float>(expected.out[i]));
    }
    const OnDevice<T> on_packed(packed.typed), on_d_out(d_out.typed), on_out(out_typed);
    const OnDevice<std::int32_t> on_first(first_key);
    const OnDevice<float> on_lse(std::vector<float>(expected.lse.begin(), expected.lse.end()));
    const std::int32_t* first = documents ? on_first.data() : nullptr;
    const auto result = in_every_order([&, &problem = problem] {
      const OnDevice<T> out(shape.tokens() * out_stride), d_packed(shape.tokens() * stride);
      const OnDevice<float> lse(shape.tokens() * shape.heads);
      const OnDevice<float> workspace(attention->backward_workspace_bytes(problem) / 4);
      attention->forward(problem, {on_packed.data(), first, out.data(), lse.data(), nullptr},
                         nullptr);
      attention->backward(problem,
                          {on_packed.data(), first, on_out.data(), on_lse.data(), on_d_out.data(),
                           d_packed.data(), workspace.data()},
                          nullptr);
      return Outputs(out.get(), lse.get(), d_packed.get());
    });
    const auto widened = [](const std::vector<T>& typed) {
      std::vector<double> wide;
      for (const T x : typed) wide.push_back(to_float(x));
      return wide;
    };
    const auto narrowed = [](const std::vector<double>& wide) {
      return std::vector<float>(wide.begin(), wide.end());
    };
    const auto out = widened(result.template get<0>());
    const auto d_packed = widened(result.template get<2>());
    const double tolerance = unit_roundoff<T>() + 2e-6;
    expect_close(narrowed(columns(out, out_stride, 0, q_cols)), expected.out, tolerance, "out");
    expect_close(result.template get<1>(), expected.lse, 1e-6, "lse");
    // d_out * out is taken from a rounded output.
    const double backward = 3 * tolerance;
    expect_close(narrowed(columns(d_packed, stride, 0, q_cols)), gradient.d_q, backward, "d_q");
    expect_close(narrowed(columns(d_packed, stride, q_cols, kv_cols)), gradient.d_k, backward,
                 "d_k");
    expect_close(narrowed(columns(d_packed, stride, q_cols + kv_cols, kv_cols)), gradient.d_v,
                 backward, "d_v");
  }
}

TEST(CudaNaiveAttentionLimits, RefusesWhatItCannotHold) {
  const auto attention = make_naive_attention();
  EXPECT_EQ(attention->refusal({.shape = {1, 1, 1, 1, 257, 1.0}}),
            "takes heads of at most 256 numbers, not 257");
  EXPECT_NE(attention->refusal({.shape = {1, 1, 3, 2, 64, 1.0}}), "");
}

}  // namespace
}  // namespace shardwright::kernels::cuda
