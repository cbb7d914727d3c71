// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/linear.h"

#include "tests/kernels/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class Linear : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Linear, Types);

TYPED_TEST(Linear, BiasMatchesTheOracle) {
  using T = TypeParam;
  for (const std::int64_t n : {1, 31, 1000}) {
    const std::int64_t out = 77, stride = 80;
    const auto y = random_data<T>(1, n * stride), bias = random_data<T>(2, out);
    std::vector<double> used;
    for (std::int64_t i = 0; i < n * stride; ++i) {
      if (i % stride < out) used.push_back(y.exact[static_cast<std::size_t>(i)]);
    }
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<T> sum = y.typed;
          bias_forward<T>(parallel, bias.data(), {sum.data(), n, out, stride});
          std::vector<T> dense;
          for (std::int64_t i = 0; i < n * stride; ++i) {
            if (i % stride < out) dense.push_back(sum[static_cast<std::size_t>(i)]);
          }
          auto workspace = poisoned<float>(column_sum_workspace_floats(out));
          auto d_bias = poisoned<T>(out);
          bias_gradient<T, T>(parallel, {y.data(), n, out, stride}, d_bias.data(),
                              workspace.data());
          return Outputs(dense, d_bias);
        },
        [&](const auto& result, const std::string& isa) {
          expect_close(result.template get<0>(), reference::bias_forward(used, bias.exact),
                       unit_roundoff<T>(), isa + " y");
          expect_close(result.template get<1>(), reference::bias_gradient(used, out),
                       unit_roundoff<T>() + 1e-6, isa + " d_bias");
        });
  }
}

// To what earlier micro-batches left; the sum itself is finished before.
TYPED_TEST(Linear, AddsTheFinishedGradientOfABias) {
  using T = TypeParam;
  const std::int64_t rows = 70, cols = 77;
  const auto y = random_data<T>(1, rows * cols);
  const auto before = random_data<float>(2, cols);
  Parallel parallel(2);
  auto workspace = poisoned<float>(column_sum_workspace_floats(cols));
  auto finished = poisoned<float>(cols);
  std::vector<float> sum = before.typed;
  bias_gradient<T, float>(parallel, {y.data(), rows, cols}, finished.data(), workspace.data());
  bias_gradient<T, float>(parallel, {y.data(), rows, cols}, sum.data(), workspace.data(),
                          Store::kAdd);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_EQ(sum[i], before.typed[i] + finished[i]) << i;
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
