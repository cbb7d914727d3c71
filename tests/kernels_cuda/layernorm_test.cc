// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/layernorm.h"

#include "kernels/cuda/column_sums.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/layernorm.h"

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
class CudaLayerNorm : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaLayerNorm, Types);

TYPED_TEST(CudaLayerNorm, MatchesTheOracle) {
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
                                   {2, 8200}}) {
    const auto x = random_data<T>(1, rows * cols, 2.0, 20.0), w = random_data<T>(2, cols, 0.2, 1.0);
    const auto b = random_data<T>(5, cols), d_y = random_data<T>(3, rows * cols);
    const auto residual = random_data<T>(4, rows * cols);
    const auto forward = reference::layernorm_forward(x.exact, w.exact, b.exact, 1e-5);
    const auto plain = reference::layernorm_forward(x.exact, w.exact, {}, 1e-5);
    const auto gradient = reference::layernorm_backward(x.exact, w.exact, forward, d_y.exact);
    std::vector<double> with_residual = gradient.d_x;
    for (std::size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += residual.exact[i];
    const Rows shape = Rows::matrix(rows, cols);
    const OnDevice<T> on_x(x.typed), on_w(w.typed), on_b(b.typed), on_d_y(d_y.typed);
    const OnDevice<T> on_residual(residual.typed);
    const auto result = in_every_order([&, rows = rows, cols = cols] {
      const OnDevice<T> y(rows * cols), without(rows * cols), d_x(rows * cols);
      const OnDevice<T> in_place(d_y.typed), d_w_typed(cols);
      const OnDevice<float> rstd(rows), mean(rows), d_w(cols);
      const OnDevice<float> workspace(norm_workspace_floats(rows, cols));
      const LayerNormStatistics saved{rstd.data(), mean.data()};
      layernorm_forward<T>(nullptr, shape, on_x.data(), on_w.data(), nullptr, 1e-5, without.data(),
                           saved);
      layernorm_forward<T>(nullptr, shape, on_x.data(), on_w.data(), on_b.data(), 1e-5, y.data(),
                           saved);
      layernorm_backward<T, float>(nullptr, shape, on_x.data(), on_w.data(), saved, on_d_y.data(),
                                   nullptr, d_x.data(), d_w.data(), workspace.data());
      // In place of d_y, with a residual, and the weight's gradient in T.
      layernorm_backward<T, T>(nullptr, shape, on_x.data(), on_w.data(), saved, in_place.data(),
                               on_residual.data(), in_place.data(), d_w_typed.data(),
                               workspace.data());
      return Outputs(y.get(), rstd.get(), mean.get(), d_x.get(), d_w.get(), in_place.get(),
                     d_w_typed.get(), without.get());
    });
    // The mean is rounded beside numbers ten times as large as what is left of them.
    const double left = 1e-5, once = unit_roundoff<T>() + left;
    expect_close(result.template get<0>(), forward.y, once, "y");
    expect_close(result.template get<1>(), forward.rstd, 2e-6, "rstd");
    expect_close(result.template get<2>(), forward.mean, 1e-6, "mean");
    expect_close(result.template get<3>(), gradient.d_x, once, "d_x");
    expect_close(result.template get<4>(), gradient.d_weight, left, "d_weight");
    expect_close(result.template get<5>(), with_residual, once, "residual");
    expect_close(result.template get<6>(), gradient.d_weight, once, "d_weight typed");
    expect_close(result.template get<7>(), plain.y, once, "without bias");
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
