// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/layernorm.h"

#include "tests/kernels/support.h"
#include "tests/oracle/layernorm.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class HostLayerNorm : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(HostLayerNorm, Types);

TYPED_TEST(HostLayerNorm, MatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 64}, {7, 5}, {33, 100}, {200, 48}, {3, 1027}}) {
    // A mean that is large beside the deviation: squares must not be summed of x itself.
    const auto x = random_data<T>(1, rows * cols, 2.0, 20.0), w = random_data<T>(2, cols, 0.2, 1.0);
    const auto b = random_data<T>(5, cols), d_y = random_data<T>(3, rows * cols);
    const auto residual = random_data<T>(4, rows * cols);
    const auto forward = reference::layernorm_forward(x.exact, w.exact, b.exact, 1e-5);
    const auto plain = reference::layernorm_forward(x.exact, w.exact, {}, 1e-5);
    const auto gradient = reference::layernorm_backward(x.exact, w.exact, forward, d_y.exact);
    std::vector<double> with_residual = gradient.d_x;
    for (std::size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += residual.exact[i];
    const Rows shape = Rows::matrix(rows, cols);
    on_every_isa(
        [&](Parallel& parallel) {
          auto y = poisoned<T>(rows * cols), without = poisoned<T>(rows * cols);
          auto rstd = poisoned<float>(rows), mean = poisoned<float>(rows);
          const LayerNormStatistics saved{rstd.data(), mean.data()};
          layernorm_forward<T>(parallel, shape, x.data(), w.data(), nullptr, 1e-5, without.data(),
                               saved);
          layernorm_forward<T>(parallel, shape, x.data(), w.data(), b.data(), 1e-5, y.data(),
                               saved);
          auto d_x = poisoned<T>(rows * cols);
          auto d_w = poisoned<float>(cols);
          auto workspace = poisoned<float>(column_sum_workspace_floats(cols));
          layernorm_backward<T, float>(parallel, shape, x.data(), w.data(), saved, d_y.data(),
                                       nullptr, d_x.data(), d_w.data(), workspace.data());
          // In place of d_y, with a residual, and the weight's gradient in T.
          std::vector<T> in_place = d_y.typed;
          auto d_w_typed = poisoned<T>(cols);
          layernorm_backward<T, T>(parallel, shape, x.data(), w.data(), saved, in_place.data(),
                                   residual.data(), in_place.data(), d_w_typed.data(),
                                   workspace.data());
          return Outputs(y, rstd, mean, d_x, d_w, in_place, d_w_typed, without);
        },
        [&](const auto& result, const std::string& isa) {
          // The mean is rounded beside numbers ten times as large as what is left of them.
          const double left = 1e-5, once = unit_roundoff<T>() + left;
          expect_close(result.template get<0>(), forward.y, once, isa + " y");
          expect_close(result.template get<1>(), forward.rstd, 2e-6, isa + " rstd");
          expect_close(result.template get<2>(), forward.mean, 1e-6, isa + " mean");
          expect_close(result.template get<3>(), gradient.d_x, once, isa + " d_x");
          expect_close(result.template get<4>(), gradient.d_weight, left, isa + " d_weight");
          expect_close(result.template get<5>(), with_residual, once, isa + " residual");
          expect_close(result.template get<6>(), gradient.d_weight, once, isa + " d_w typed");
          expect_close(result.template get<7>(), plain.y, once, isa + " without bias");
        });
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
