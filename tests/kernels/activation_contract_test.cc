// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/contract.h"
#include "tests/oracle/activation.h"

namespace shardwright::kernels::contract {
namespace {

struct ActivationKernels : Kernels {};
INSTANTIATE_TEST_SUITE_P(On, ActivationKernels, ::testing::ValuesIn(cases()), parameter_name);

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kRelu};

TEST_P(ActivationKernels, GatedMatchTheOracle) {
  using Shape = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [rows, cols] :
       shapes<Shape>({{1, 1}, {5, 37}, {60, 64}, {2, 2064}}, {{300, 64}})) {
    const auto both = random(type(), 1, rows * 2 * cols, 3.0), d_y = random(type(), 3, rows * cols);
    const auto gate = columns(both, 2 * cols, 0, cols), up = columns(both, 2 * cols, cols, cols);
    for (const Activation activation : kActivations) {
      const auto result = everywhere([&, rows = rows, cols = cols](const Place& on) -> Results {
        const auto in = on.put(type(), both), d_out = on.put(type(), d_y);
        const auto y = on.nans(type(), rows * cols);
        on->activation_forward(on.stream, activation, in.matrix(2 * cols), y.matrix(cols));
        // The gradients take the place of the inputs.
        on->activation_backward(on.stream, activation, in.matrix(2 * cols), d_out.matrix(cols),
                                in.matrix(2 * cols));
        return {y.get(), in.get()};
      });
      const auto expected = reference::gated_backward(activation, gate, up, d_y);
      Numbers d_both = both;
      place(expected.d_gate, d_both, 2 * cols, 0, cols);
      place(expected.d_up, d_both, 2 * cols, cols, cols);
      expect_close(result[0], reference::gated_forward(activation, gate, up), once(), "y");
      expect_close(result[1], d_both, once(), "d_in");
    }
  }
}

TEST_P(ActivationKernels, PlainMatchTheOracle) {
  for (const std::int64_t cols : {45, 48}) {
    const auto x = random(type(), 1, 9 * cols, 3.0), d_y = random(type(), 2, 9 * cols);
    for (const Activation activation : kActivations) {
      const auto result = everywhere([&](const Place& on) -> Results {
        const auto in = on.put(type(), x), d_out = on.put(type(), d_y);
        const auto y = on.nans(type(), 9 * cols), d_x = on.nans(type(), 9 * cols);
        on->activation_forward(on.stream, activation, in.matrix(cols), y.matrix(cols));
        on->activation_backward(on.stream, activation, in.matrix(cols), d_out.matrix(cols),
                                d_x.matrix(cols));
        return {y.get(), d_x.get()};
      });
      expect_close(result[0], reference::activation_forward(activation, x), once(), "y");
      expect_close(result[1], reference::activation_backward(activation, x, d_y), once(), "d_x");
    }
  }
}

// Saturated far from zero on both sides, with no NaN where infinities could meet.
TEST_P(ActivationKernels, ExtremesStayNumbers) {
  Numbers x;
  for (const double v : {-1e30, -500.0, -200.0, -90.0, -88.0, -20.0, 0.0}) {
    x.push_back(rounded(type(), v));
    x.push_back(-x.back());
  }
  for (const Activation activation : kActivations) {
    const auto result = everywhere([&](const Place& on) -> Results {
      const auto in = on.put(type(), x), ones = on.put(type(), Numbers(x.size(), 1.0));
      const auto y = on.nans(type(), std::ssize(x)), d_x = on.nans(type(), std::ssize(x));
      const auto cols = std::ssize(x);
      on->activation_forward(on.stream, activation, in.matrix(cols), y.matrix(cols));
      on->activation_backward(on.stream, activation, in.matrix(cols), ones.matrix(cols),
                              d_x.matrix(cols));
      return {y.get(), d_x.get()};
    });
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = reference::activate(activation, x[i]);
      EXPECT_NEAR(result[0][i], exact, 1e-6 + std::abs(exact) * once()) << x[i];
      // The host's sigmoid has an end, which -1e30 is multiplied by.
      EXPECT_NEAR(result[1][i], reference::activation_slope(activation, x[i]),
                  executor().is_host ? 1e-5 : 1e-6)
          << x[i];
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
