// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"

#include "kernels/cuda/column_sums.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/rmsnorm.h"

namespace shardwright::kernels::cuda {
namespace {

using host::Rows;
using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class CudaRmsNorm : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaRmsNorm, Types);

TYPED_TEST(CudaRmsNorm, MatchesTheOracle) {
  using T = TypeParam;
  // One to many lanes a row, whole and broken chunks.
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 64},
                                   {37, 128},
                                   {7, 5},
                                   {7, 13},
                                   {9, 50},
                                   {9, 24},
                                   {3, 1504},
                                   {33, 100},
                                   {9, 512},
                                   {5, 2056},
                                   {3, 1027},
                                   {300, 520},
                                   {40, 4104},
                                   {33, 2056},
                                   {2, 8200}}) {
    const auto x = random_data<T>(1, rows * cols, 2.0), w = random_data<T>(2, cols, 0.2, 1.0);
    const auto d_y = random_data<T>(3, rows * cols), residual = random_data<T>(4, rows * cols);
    const auto forward = reference::rmsnorm_forward(x.exact, w.exact, 1e-5);
    const Rows shape = Rows::matrix(rows, cols);
    const auto gradient = reference::rmsnorm_backward(x.exact, w.exact, forward.rstd, d_y.exact);
    std::vector<double> with_residual = gradient.d_x;
    for (std::size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += residual.exact[i];
    const OnDevice<T> on_x(x.typed), on_w(w.typed), on_d_y(d_y.typed), on_residual(residual.typed);
    const OnDevice<float> rstd(std::vector<float>(forward.rstd.begin(), forward.rstd.end()));
    const auto result = in_every_order([&, rows = rows, cols = cols] {
      const OnDevice<T> y(rows * cols), d_x(rows * cols), in_place(d_y.typed), d_w_typed(cols);
      const OnDevice<float> saved(rows), d_w(cols), workspace(norm_workspace_floats(rows, cols));
      rmsnorm_forward<T>(nullptr, shape, on_x.data(), on_w.data(), 1e-5, y.data(), saved.data());
      rmsnorm_backward<T, float>(nullptr, shape, on_x.data(), on_w.data(), rstd.data(),
                                 on_d_y.data(), nullptr, d_x.data(), d_w.data(), workspace.data());
      // In place of d_y, with a residual, and the weight's gradient in T.
      rmsnorm_backward<T, T>(nullptr, shape, on_x.data(), on_w.data(), rstd.data(), in_place.data(),
                             on_residual.data(), in_place.data(), d_w_typed.data(),
                             workspace.data());
      return Outputs(y.get(), saved.get(), d_x.get(), d_w.get(), in_place.get(), d_w_typed.get());
    });
    const double once = unit_roundoff<T>() + 1e-6;
    expect_close(result.template get<0>(), forward.y, once, "y");
    expect_close(result.template get<1>(), forward.rstd, 1e-6, "rstd");
    expect_close(result.template get<2>(), gradient.d_x, once, "d_x");
    expect_close(result.template get<3>(), gradient.d_weight, 2e-6, "d_weight");
    expect_close(result.template get<4>(), with_residual, once, "residual");
    expect_close(result.template get<5>(), gradient.d_weight, once + 1e-6, "d_weight typed");
  }
}

// A long row is read once, and its weight's gradient is added up beside it.
TYPED_TEST(CudaRmsNorm, ReadsLongRowsOnce) {
  using T = TypeParam;
  for (const auto& [cols, once] : {std::pair<std::int64_t, bool>{256, false},
                                   {520, true},
                                   {8192, true},
                                   {8200, false},
                                   {1027, false}}) {
    const std::int64_t rows = 40;
    const auto x = random_data<T>(1, rows * cols), w = random_data<T>(2, cols);
    const OnDevice<T> on_x(x.typed), on_w(w.typed), d_x(rows * cols);
    const OnDevice<float> rstd(std::vector<float>(static_cast<std::size_t>(rows), 1.0f));
    const OnDevice<float> workspace(norm_workspace_floats(rows, cols));
    const auto before = random_data<float>(3, cols);
    const OnDevice<float> alone(cols), sum(before.typed);
    const std::int64_t launched = testing::kernels_launched();
    rmsnorm_backward<T, float>(nullptr, Rows::matrix(rows, cols), on_x.data(), on_w.data(),
                               rstd.data(), on_x.data(), nullptr, d_x.data(), alone.data(),
                               workspace.data());
    // Otherwise sums over rows and the gradient of rows are kernels of their own.
    if (testing::kEmulated) {
      EXPECT_EQ(testing::kernels_launched() - launched, once ? 2 : 3) << cols;
    }
    rmsnorm_backward<T, float>(nullptr, Rows::matrix(rows, cols), on_x.data(), on_w.data(),
                               rstd.data(), on_x.data(), nullptr, d_x.data(), sum.data(),
                               workspace.data(), 0, 0.0, host::Store::kAdd);
    const std::vector<float> finished = alone.get(), after = sum.get();
    for (std::size_t i = 0; i < finished.size(); ++i) {
      ASSERT_EQ(after[i], before.typed[i] + finished[i]) << i;
    }
  }
}

// Gemma's weights are kept as their difference from 1.
TYPED_TEST(CudaRmsNorm, AddsToTheWeight) {
  using T = TypeParam;
  const std::int64_t rows = 7, cols = 104;
  const auto x = random_data<T>(1, rows * cols, 2.0), w = random_data<T>(2, cols, 0.2);
  const auto d_y = random_data<T>(3, rows * cols);
  std::vector<double> whole = w.exact;
  for (double& one : whole) one += 1;
  const auto forward = reference::rmsnorm_forward(x.exact, whole, 1e-5);
  const auto gradient = reference::rmsnorm_backward(x.exact, whole, forward.rstd, d_y.exact);
  const OnDevice<T> on_x(x.typed), on_w(w.typed), on_d_y(d_y.typed);
  const auto result = in_every_order([&] {
    const Rows shape = Rows::matrix(rows, cols);
    const OnDevice<T> y(rows * cols), d_x(rows * cols);
    const OnDevice<float> rstd(rows), d_w(cols), workspace(column_sum_workspace_floats(cols));
    rmsnorm_forward<T>(nullptr, shape, on_x.data(), on_w.data(), 1e-5, y.data(), rstd.data(), 1.0);
    rmsnorm_backward<T, float>(nullptr, shape, on_x.data(), on_w.data(), rstd.data(), on_d_y.data(),
                               nullptr, d_x.data(), d_w.data(), workspace.data(), 0, 1.0);
    return Outputs(y.get(), d_x.get(), d_w.get());
  });
  const double once = unit_roundoff<T>() + 1e-6;
  expect_close(result.template get<0>(), forward.y, once, "y");
  expect_close(result.template get<1>(), gradient.d_x, once, "d_x");
  expect_close(result.template get<2>(), gradient.d_weight, 2e-6, "d_weight");
}

// More rows than there are blocks: the first blocks use their shared memory again.
using CudaRmsNormLimits = testing::CudaTest;
TEST_F(CudaRmsNormLimits, BlocksTakeSeveralRows) {
  using T = float;
  const std::int64_t rows = 4096 + 16, cols = 65;
  const auto x = random_data<T>(1, rows * cols), w = random_data<T>(2, cols);
  const auto expected = reference::rmsnorm_forward(x.exact, w.exact, 1e-5);
  const OnDevice<T> on_x(x.typed), on_w(w.typed);
  const auto result = in_every_order([&] {
    const OnDevice<T> y(rows * cols);
    const OnDevice<float> rstd(rows);
    rmsnorm_forward<T>(nullptr, Rows::matrix(rows, cols), on_x.data(), on_w.data(), 1e-5, y.data(),
                       rstd.data());
    return Outputs(y.get(), rstd.get());
  });
  expect_close(result.get<0>(), expected.y, 1e-6, "y");
  expect_close(result.get<1>(), expected.rstd, 1e-6, "rstd");
}

// The heads of packed tokens: the same bits as on a dense copy, and nothing else is touched.
TYPED_TEST(CudaRmsNorm, WorksOnHeadsInsidePackedTokens) {
  using T = TypeParam;
  const std::int64_t tokens = 9, heads = 3, d = 16, stride = 104;
  const auto packed = random_data<T>(1, tokens * stride), w = random_data<T>(2, d);
  const auto d_y = random_data<T>(3, tokens * stride);
  std::vector<T> dense;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < heads * d; ++i) {
      dense.push_back(packed.typed[static_cast<std::size_t>(t * stride + i)]);
    }
  }
  const Rows rows{.tokens = tokens, .heads = heads, .cols = d, .stride = stride};
  const OnDevice<T> on_w(w.typed), on_dense(dense), on_packed(packed.typed);
  const OnDevice<T> y(packed.typed), dense_y(tokens * heads * d);
  const OnDevice<float> rstd(tokens * heads), dense_rstd(tokens * heads);
  rmsnorm_forward<T>(nullptr, rows, y.data(), on_w.data(), 1e-6, y.data(), rstd.data());
  rmsnorm_forward<T>(nullptr, Rows::matrix(tokens * heads, d), on_dense.data(), on_w.data(), 1e-6,
                     dense_y.data(), dense_rstd.data());
  EXPECT_EQ(rstd.get(), dense_rstd.get());
  const auto got = y.get(), expected = dense_y.get();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < stride; ++i) {
      const auto at = static_cast<std::size_t>(t * stride + i);
      ASSERT_EQ(got[at], i < heads * d ? expected[static_cast<std::size_t>(t * heads * d + i)]
                                       : packed.typed[at]);
    }
  }

  // Backward inside the packed gradient, from an x that lies dense.
  const OnDevice<float> workspace(column_sum_workspace_floats(d));
  const OnDevice<T> d_w(d), d_w_dense(d), d_x(d_y.typed), d_x_dense(d_y.typed);
  rmsnorm_backward<T, T>(nullptr, rows, on_packed.data(), on_w.data(), rstd.data(), d_x.data(),
                         nullptr, d_x.data(), d_w.data(), workspace.data());
  rmsnorm_backward<T, T>(nullptr, rows, on_dense.data(), on_w.data(), rstd.data(), d_x_dense.data(),
                         nullptr, d_x_dense.data(), d_w_dense.data(), workspace.data(), heads * d);
  EXPECT_TRUE(testing::same_bits(d_x.get(), d_x_dense.get()));
  EXPECT_TRUE(testing::same_bits(d_w.get(), d_w_dense.get()));
}

}  // namespace
}  // namespace shardwright::kernels::cuda
