// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sums.h"

#include "tests/kernels_cuda/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class CudaBias : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaBias, Types);

TYPED_TEST(CudaBias, MatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 264}, {70, 37}, {500, 16}, {5, 1000}}) {
    const auto y = random_data<T>(1, rows * cols), bias = random_data<T>(2, cols);
    const OnDevice<T> on_y(y.typed), on_bias(bias.typed);
    const auto result = in_every_order([&, rows = rows, cols = cols] {
      const OnDevice<T> sum(y.typed), d_typed(cols);
      const OnDevice<float> d_bias(cols), workspace(column_sum_workspace_floats(cols));
      bias_forward<T>(nullptr, on_bias.data(), {sum.data(), rows, cols});
      bias_gradient<T, float>(nullptr, {on_y.data(), rows, cols}, d_bias.data(), workspace.data());
      bias_gradient<T, T>(nullptr, {on_y.data(), rows, cols}, d_typed.data(), workspace.data());
      return Outputs(sum.get(), d_bias.get(), d_typed.get());
    });
    const auto gradient = reference::bias_gradient(y.exact, cols);
    expect_close(result.template get<0>(), reference::bias_forward(y.exact, bias.exact),
                 unit_roundoff<T>(), "y");
    expect_close(result.template get<1>(), gradient, 2e-6, "d_bias");
    expect_close(result.template get<2>(), gradient, unit_roundoff<T>() + 2e-6, "typed d_bias");
  }
}

// To what earlier micro-batches left; the sum itself is finished before.
TYPED_TEST(CudaBias, AddsTheFinishedGradient) {
  using T = TypeParam;
  for (const std::int64_t cols : {264, 37}) {
    const auto y = random_data<T>(1, 70 * cols), before = random_data<float>(2, cols);
    const OnDevice<T> on_y(y.typed);
    const OnDevice<float> alone(cols), sum(before.typed);
    const OnDevice<float> workspace(column_sum_workspace_floats(cols));
    bias_gradient<T, float>(nullptr, {on_y.data(), 70, cols}, alone.data(), workspace.data());
    bias_gradient<T, float>(nullptr, {on_y.data(), 70, cols}, sum.data(), workspace.data(),
                            host::Store::kAdd);
    const std::vector<float> finished = alone.get(), after = sum.get();
    for (std::size_t i = 0; i < finished.size(); ++i) {
      ASSERT_EQ(after[i], before.typed[i] + finished[i]) << i;
    }
  }
}

// A part of wider rows, as in packed projections.
TYPED_TEST(CudaBias, WorksOnColumnsOfWiderRows) {
  using T = TypeParam;
  const std::int64_t rows = 40, cols = 24, stride = 56;
  for (const std::int64_t first : {8, 3}) {
    const auto all = random_data<T>(1, rows * stride);
    std::vector<double> part;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        part.push_back(all.exact[static_cast<std::size_t>(row * stride + first + col)]);
      }
    }
    const OnDevice<T> y(all.typed);
    const OnDevice<float> d_bias(cols), workspace(column_sum_workspace_floats(cols));
    bias_gradient<T, float>(nullptr, {y.data() + first, rows, cols, stride}, d_bias.data(),
                            workspace.data());
    expect_close(d_bias.get(), reference::bias_gradient(part, cols), 2e-6, "d_bias");
    const OnDevice<T> ones(std::vector<T>(static_cast<std::size_t>(cols), from_float<T>(1.0f)));
    bias_forward<T>(nullptr, ones.data(), {y.data() + first, rows, cols, stride});
    const auto after = y.get();
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto col = static_cast<std::int64_t>(i) % stride - first;
      const float before = to_float(all.typed[i]);
      EXPECT_EQ(after[i], from_float<T>(col >= 0 && col < cols ? before + 1.0f : before));
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
