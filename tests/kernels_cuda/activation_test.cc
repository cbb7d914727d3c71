// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/activation.h"

#include "tests/kernels_cuda/support.h"
#include "tests/oracle/activation.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                               Activation::kRelu};

template <class T>
class CudaActivation : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaActivation, Types);

TYPED_TEST(CudaActivation, GatedMatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 37}, {60, 64}, {2, 2064}}) {
    const auto both = random_data<T>(1, rows * 2 * cols, 3.0), d_y = random_data<T>(3, rows * cols);
    std::vector<double> gate, up;
    for (std::int64_t i = 0; i < rows * 2 * cols; ++i) {
      (i % (2 * cols) < cols ? gate : up).push_back(both.exact[static_cast<std::size_t>(i)]);
    }
    const OnDevice<T> in(both.typed), on_d_y(d_y.typed);
    for (const Activation activation : kAll) {
      const auto result = in_every_order([&, rows = rows, cols = cols] {
        const OnDevice<T> y(rows * cols), d_in(both.typed);  // in place of the inputs
        activation_forward<T>(nullptr, activation, {in.data(), rows, 2 * cols},
                              {y.data(), rows, cols});
        activation_backward<T>(nullptr, activation, {d_in.data(), rows, 2 * cols},
                               {on_d_y.data(), rows, cols}, {d_in.data(), rows, 2 * cols});
        return Outputs(y.get(), d_in.get());
      });
      const double tolerance = unit_roundoff<T>() + 1e-6;
      const auto expected = reference::gated_backward(activation, gate, up, d_y.exact);
      std::vector<double> d_both;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (const auto& part : {expected.d_gate, expected.d_up}) {
          d_both.insert(d_both.end(), part.begin() + row * cols, part.begin() + (row + 1) * cols);
        }
      }
      expect_close(result.template get<0>(), reference::gated_forward(activation, gate, up),
                   tolerance, "y");
      expect_close(result.template get<1>(), d_both, tolerance, "d_in");
    }
  }
}

TYPED_TEST(CudaActivation, PlainMatchesTheOracle) {
  using T = TypeParam;
  for (const std::int64_t cols : {45, 48}) {
    const std::int64_t rows = 9;
    const auto x = random_data<T>(1, rows * cols, 3.0), d_y = random_data<T>(2, rows * cols);
    const OnDevice<T> on_x(x.typed), on_d_y(d_y.typed);
    for (const Activation activation : kAll) {
      const auto result = in_every_order([&] {
        const OnDevice<T> y(rows * cols), d_x(rows * cols);
        activation_forward<T>(nullptr, activation, {on_x.data(), rows, cols},
                              {y.data(), rows, cols});
        activation_backward<T>(nullptr, activation, {on_x.data(), rows, cols},
                               {on_d_y.data(), rows, cols}, {d_x.data(), rows, cols});
        return Outputs(y.get(), d_x.get());
      });
      const double tolerance = unit_roundoff<T>() + 1e-6;
      expect_close(result.template get<0>(), reference::activation_forward(activation, x.exact),
                   tolerance, "y");
      expect_close(result.template get<1>(),
                   reference::activation_backward(activation, x.exact, d_y.exact), tolerance,
                   "d_x");
    }
  }
}

// Saturated far from zero on both sides, with no NaN where infinities could meet.
TYPED_TEST(CudaActivation, ExtremesStayNumbers) {
  using T = TypeParam;
  std::vector<T> x;
  for (const float v : {-1e30f, -500.0f, -90.0f, -20.0f, 0.0f, 20.0f, 90.0f, 500.0f, 1e30f}) {
    x.push_back(from_float<T>(v));
  }
  const OnDevice<T> in(x), ones(std::vector<T>(x.size(), from_float<T>(1.0f)));
  const auto count = static_cast<std::int64_t>(x.size());
  for (const Activation activation : kAll) {
    const OnDevice<T> y(count), d_x(count);
    activation_forward<T>(nullptr, activation, {in.data(), 1, count}, {y.data(), 1, count});
    activation_backward<T>(nullptr, activation, {in.data(), 1, count}, {ones.data(), 1, count},
                           {d_x.data(), 1, count});
    const auto value = y.get(), slope = d_x.get();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = reference::activate(activation, to_float(x[i]));
      EXPECT_NEAR(to_float(value[i]), exact, 1e-6 + std::abs(exact) * unit_roundoff<T>());
      EXPECT_NEAR(to_float(slope[i]), reference::activation_slope(activation, to_float(x[i])),
                  1e-6);
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
