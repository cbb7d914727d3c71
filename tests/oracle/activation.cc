// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/activation.h"

#include <cmath>
#include <numbers>

namespace shardwright::kernels::reference {
namespace {

const double kRootTwoOverPi = std::sqrt(2.0 / std::numbers::pi);

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double gelu_inner(double x) {
  return kRootTwoOverPi * (x + 0.044715 * x * x * x);
}

}  // namespace

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(gelu_inner(x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
  }
  return 0;
}

double activation_slope(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    case Activation::kGelu:
      return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    case Activation::kGeluTanh: {
      const double t = std::tanh(gelu_inner(x));
      return 0.5 * (1.0 + t) +
             0.5 * x * (1.0 - t * t) * kRootTwoOverPi * (1.0 + 3.0 * 0.044715 * x * x);
    }
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
  }
  return 0;
}

std::vector<double> activation_forward(Activation activation, const std::vector<double>& x) {
  std::vector<double> y;
  for (const double value : x) y.push_back(activate(activation, value));
  return y;
}

std::vector<double> activation_backward(Activation activation, const std::vector<double>& x,
                                        const std::vector<double>& d_y) {
  std::vector<double> d_x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    d_x.push_back(d_y[i] * activation_slope(activation, x[i]));
  }
  return d_x;
}

std::vector<double> gated_forward(Activation activation, const std::vector<double>& gate,
                                  const std::vector<double>& up) {
  std::vector<double> y;
  for (std::size_t i = 0; i < gate.size(); ++i) y.push_back(activate(activation, gate[i]) * up[i]);
  return y;
}

GatedGradient gated_backward(Activation activation, const std::vector<double>& gate,
                             const std::vector<double>& up, const std::vector<double>& d_y) {
  GatedGradient result;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    result.d_gate.push_back(d_y[i] * up[i] * activation_slope(activation, gate[i]));
    result.d_up.push_back(d_y[i] * activate(activation, gate[i]));
  }
  return result;
}

}  // namespace shardwright::kernels::reference
