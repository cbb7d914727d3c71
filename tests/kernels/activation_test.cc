// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/activation.h"

#include "tests/kernels/support.h"
#include "tests/oracle/activation.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                               Activation::kRelu};

template <class T>
class ActivationOperation : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(ActivationOperation, Types);

TYPED_TEST(ActivationOperation, GatedMatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 37}, {300, 64}}) {
    const auto gate = random_data<T>(1, rows * cols, 3.0), up = random_data<T>(2, rows * cols);
    const auto d_y = random_data<T>(3, rows * cols);
    for (const Activation activation : kAll) {
      on_every_isa(
          [&](Parallel& parallel) {
            auto y = poisoned<T>(rows * cols);
            gated_forward<T>(parallel, activation, {gate.data(), rows, cols},
                             {up.data(), rows, cols}, {y.data(), rows, cols});
            // The gradients take the place of the inputs.
            std::vector<T> d_gate = gate.typed, d_up = up.typed;
            gated_backward<T>(parallel, activation, {d_gate.data(), rows, cols},
                              {d_up.data(), rows, cols}, {d_y.data(), rows, cols},
                              {d_gate.data(), rows, cols}, {d_up.data(), rows, cols});
            return Outputs(y, d_gate, d_up);
          },
          [&](const auto& result, const std::string& isa) {
            const double tolerance = unit_roundoff<T>() + 1e-6;
            const auto expected =
                reference::gated_backward(activation, gate.exact, up.exact, d_y.exact);
            expect_close(result.template get<0>(),
                         reference::gated_forward(activation, gate.exact, up.exact), tolerance,
                         isa + " y");
            expect_close(result.template get<1>(), expected.d_gate, tolerance, isa + " d_gate");
            expect_close(result.template get<2>(), expected.d_up, tolerance, isa + " d_up");
          });
    }
  }
}

TYPED_TEST(ActivationOperation, PlainMatchesTheOracle) {
  using T = TypeParam;
  const std::int64_t rows = 9, cols = 45;
  const auto x = random_data<T>(1, rows * cols, 3.0), d_y = random_data<T>(2, rows * cols);
  for (const Activation activation : kAll) {
    on_every_isa(
        [&](Parallel& parallel) {
          auto y = poisoned<T>(rows * cols), d_x = poisoned<T>(rows * cols);
          activation_forward<T>(parallel, activation, {x.data(), rows, cols},
                                {y.data(), rows, cols});
          activation_backward<T>(parallel, activation, {x.data(), rows, cols},
                                 {d_y.data(), rows, cols}, {d_x.data(), rows, cols});
          return Outputs(y, d_x);
        },
        [&](const auto& result, const std::string& isa) {
          const double tolerance = unit_roundoff<T>() + 1e-6;
          expect_close(result.template get<0>(), reference::activation_forward(activation, x.exact),
                       tolerance, isa + " y");
          expect_close(result.template get<1>(),
                       reference::activation_backward(activation, x.exact, d_y.exact), tolerance,
                       isa + " d_x");
        });
  }
}

// Gate and up as the halves of one product, as fused gate-up matrices give them.
TYPED_TEST(ActivationOperation, HalvesOfOneBuffer) {
  using T = TypeParam;
  const std::int64_t rows = 6, cols = 19;
  const auto both = random_data<T>(1, rows * 2 * cols);
  std::vector<double> gate, up;
  for (std::int64_t i = 0; i < rows * 2 * cols; ++i) {
    (i % (2 * cols) < cols ? gate : up).push_back(both.exact[static_cast<std::size_t>(i)]);
  }
  Parallel parallel(2);
  auto y = poisoned<T>(rows * cols);
  gated_forward<T>(parallel, Activation::kSilu, {both.data(), rows, cols, 2 * cols},
                   {both.data() + cols, rows, cols, 2 * cols}, {y.data(), rows, cols});
  expect_close(y, reference::gated_forward(Activation::kSilu, gate, up), unit_roundoff<T>() + 1e-6,
               "halves");
}

// Far from zero the exponentials must neither overflow into NaN nor lose the limit.
TEST(ActivationOperation32, Extremes) {
  const std::vector<float> x = {-1e30f, -200.0f, -88.0f, -20.0f, 0.0f, 20.0f, 88.0f, 200.0f, 1e30f};
  for (const Isa isa : supported_isas()) {
    Parallel parallel(1, isa);
    for (const Activation activation : kAll) {
      std::vector<float> y(x.size());
      const auto n = std::ssize(x);
      activation_forward<float>(parallel, activation, {x.data(), 1, n}, {y.data(), 1, n});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = x[i] < -15 ? 0.0 : static_cast<double>(x[i]);
        EXPECT_NEAR(y[i], expected, 1e-6 * std::abs(expected) + 1e-6) << x[i];
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
