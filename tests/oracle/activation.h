// SPDX-License-Identifier: Apache-2.0
// Oracle for activations, gated and plain, in double.
#pragma once

#include <vector>

#include "sim/core/model.h"

namespace shardwright::kernels::reference {

/// f(x).
double activate(Activation activation, double x);
/// f'(x).
double activation_slope(Activation activation, double x);

std::vector<double> activation_forward(Activation activation, const std::vector<double>& x);
std::vector<double> activation_backward(Activation activation, const std::vector<double>& x,
                                        const std::vector<double>& d_y);

/// y = f(gate) * up.
std::vector<double> gated_forward(Activation activation, const std::vector<double>& gate,
                                  const std::vector<double>& up);
struct GatedGradient {
  std::vector<double> d_gate, d_up;
};
GatedGradient gated_backward(Activation activation, const std::vector<double>& gate,
                             const std::vector<double>& up, const std::vector<double>& d_y);

}  // namespace shardwright::kernels::reference
