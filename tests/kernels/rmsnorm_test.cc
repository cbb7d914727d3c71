// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rmsnorm.h"

#include "tests/kernels/support.h"
#include "tests/oracle/rmsnorm.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class RmsNorm : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(RmsNorm, Types);

TYPED_TEST(RmsNorm, MatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 64}, {7, 5}, {33, 100}, {200, 48}, {3, 1027}}) {
    const auto x = random_data<T>(1, rows * cols, 2.0), w = random_data<T>(2, cols, 0.2, 1.0);
    const auto d_y = random_data<T>(3, rows * cols), residual = random_data<T>(4, rows * cols);
    const auto forward = reference::rmsnorm_forward(x.exact, w.exact, 1e-5);
    const Rows shape = Rows::matrix(rows, cols);
    std::vector<float> rstd(forward.rstd.begin(), forward.rstd.end());
    auto gradient = reference::rmsnorm_backward(x.exact, w.exact, forward.rstd, d_y.exact);
    std::vector<double> with_residual = gradient.d_x;
    for (std::size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += residual.exact[i];
    on_every_isa(
        [&](Parallel& parallel) {
          auto y = poisoned<T>(rows * cols);
          auto saved = poisoned<float>(rows);
          rmsnorm_forward(parallel, shape, x.data(), w.data(), 1e-5, y.data(), saved.data());
          auto d_x = poisoned<T>(rows * cols);
          auto d_w = poisoned<float>(cols);
          auto workspace = poisoned<float>(column_sum_workspace_floats(cols));
          rmsnorm_backward<T, float>(parallel, shape, x.data(), w.data(), rstd.data(), d_y.data(),
                                     nullptr, d_x.data(), d_w.data(), workspace.data());
          // In place of d_y, with a residual, and the weight's gradient in T.
          std::vector<T> in_place = d_y.typed;
          auto d_w_typed = poisoned<T>(cols);
          rmsnorm_backward<T, T>(parallel, shape, x.data(), w.data(), rstd.data(), in_place.data(),
                                 residual.data(), in_place.data(), d_w_typed.data(),
                                 workspace.data());
          return Outputs(y, saved, d_x, d_w, in_place, d_w_typed);
        },
        [&](const auto& result, const std::string& isa) {
          const double once = unit_roundoff<T>() + 1e-6;
          expect_close(result.template get<0>(), forward.y, once, isa + " y");
          expect_close(result.template get<1>(), forward.rstd, 1e-6, isa + " rstd");
          expect_close(result.template get<2>(), gradient.d_x, once, isa + " d_x");
          expect_close(result.template get<3>(), gradient.d_weight, 2e-6, isa + " d_weight");
          expect_close(result.template get<4>(), with_residual, once, isa + " residual");
          expect_close(result.template get<5>(), gradient.d_weight, once + 1e-6,
                       isa + " d_w typed");
        });
  }
}

// Gemma's weights are kept as their difference from 1.
TYPED_TEST(RmsNorm, AddsToTheWeight) {
  using T = TypeParam;
  const std::int64_t rows = 7, cols = 100;
  const auto x = random_data<T>(1, rows * cols, 2.0), w = random_data<T>(2, cols, 0.2);
  const auto d_y = random_data<T>(3, rows * cols);
  std::vector<double> whole = w.exact;
  for (double& one : whole) one += 1;
  const auto forward = reference::rmsnorm_forward(x.exact, whole, 1e-5);
  const auto gradient = reference::rmsnorm_backward(x.exact, whole, forward.rstd, d_y.exact);
  on_every_isa(
      [&](Parallel& parallel) {
        auto y = poisoned<T>(rows * cols), d_x = poisoned<T>(rows * cols);
        auto rstd = poisoned<float>(rows), d_w = poisoned<float>(cols);
        auto workspace = poisoned<float>(column_sum_workspace_floats(cols));
        const Rows shape = Rows::matrix(rows, cols);
        rmsnorm_forward(parallel, shape, x.data(), w.data(), 1e-5, y.data(), rstd.data(), 1.0);
        rmsnorm_backward<T, float>(parallel, shape, x.data(), w.data(), rstd.data(), d_y.data(),
                                   nullptr, d_x.data(), d_w.data(), workspace.data(), 0, 1.0);
        return Outputs(y, d_x, d_w);
      },
      [&](const auto& result, const std::string& isa) {
        const double once = unit_roundoff<T>() + 1e-6;
        expect_close(result.template get<0>(), forward.y, once, isa + " y");
        expect_close(result.template get<1>(), gradient.d_x, once, isa + " d_x");
        expect_close(result.template get<2>(), gradient.d_weight, 2e-6, isa + " d_weight");
      });
}

// The heads of packed tokens: same numbers as on a dense copy, and nothing else is touched.
TYPED_TEST(RmsNorm, WorksOnHeadsInsidePackedTokens) {
  using T = TypeParam;
  const std::int64_t tokens = 9, heads = 3, d = 16, stride = 100;
  const auto packed = random_data<T>(1, tokens * stride), w = random_data<T>(2, d);
  std::vector<T> dense;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < heads * d; ++i) {
      dense.push_back(packed.typed[static_cast<std::size_t>(t * stride + i)]);
    }
  }
  const Rows rows{.tokens = tokens, .heads = heads, .cols = d, .stride = stride};
  Parallel parallel(2);
  std::vector<T> y = packed.typed, dense_y(dense.size());
  std::vector<float> rstd(static_cast<std::size_t>(tokens * heads)), dense_rstd(rstd.size());
  rmsnorm_forward(parallel, rows, y.data(), w.data(), 1e-6, y.data(), rstd.data());
  rmsnorm_forward(parallel, Rows::matrix(tokens * heads, d), dense.data(), w.data(), 1e-6,
                  dense_y.data(), dense_rstd.data());
  EXPECT_EQ(rstd, dense_rstd);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < stride; ++i) {
      const auto at = static_cast<std::size_t>(t * stride + i);
      EXPECT_EQ(y[at], i < heads * d ? dense_y[static_cast<std::size_t>(t * heads * d + i)]
                                     : packed.typed[at]);
    }
  }

  // Backward inside the packed gradient, from an x that lies dense.
  const auto d_y = random_data<T>(3, tokens * stride);
  std::vector<float> workspace(static_cast<std::size_t>(column_sum_workspace_floats(d)));
  std::vector<T> d_w(static_cast<std::size_t>(d)), d_w_dense(d_w);
  std::vector<T> d_x = d_y.typed, d_x_dense = d_y.typed;
  rmsnorm_backward<T, T>(parallel, rows, packed.data(), w.data(), rstd.data(), d_x.data(), nullptr,
                         d_x.data(), d_w.data(), workspace.data());
  rmsnorm_backward<T, T>(parallel, rows, dense.data(), w.data(), rstd.data(), d_x_dense.data(),
                         nullptr, d_x_dense.data(), d_w_dense.data(), workspace.data(), heads * d);
  EXPECT_EQ(d_x, d_x_dense);
  EXPECT_EQ(d_w, d_w_dense);
}

}  // namespace
}  // namespace shardwright::kernels::host
