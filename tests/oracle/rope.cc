// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/rope.h"

#include <cmath>
#include <complex>
#include <numbers>

namespace shardwright::kernels::reference {

double rope_frequency(const Rope& parameters, std::int64_t rotary_dim, std::int64_t j) {
  const double frequency = 1.0 / std::pow(parameters.theta, 2.0 * static_cast<double>(j) /
                                                                static_cast<double>(rotary_dim));
  if (parameters.scaling == RopeScaling::kNone) return frequency;
  if (parameters.scaling == RopeScaling::kLinear) return frequency / parameters.factor;
  const double turns =
      static_cast<double>(parameters.original_max_positions) * frequency / (2.0 * std::numbers::pi);
  // Fewer turns over the original context than low_freq_factor: stretched; more than
  // high_freq_factor: kept; in between a straight line from one to the other.
  double kept = (turns - parameters.low_freq_factor) /
                (parameters.high_freq_factor - parameters.low_freq_factor);
  kept = std::fmin(std::fmax(kept, 0.0), 1.0);
  return frequency * (kept + (1.0 - kept) / parameters.factor);
}

std::vector<double> rope(const std::vector<double>& x, std::int64_t heads, std::int64_t head_dim,
                         std::int64_t rotary_dim, const Rope& parameters,
                         const std::vector<std::int32_t>& positions, double direction) {
  std::vector<double> y = x;
  for (std::size_t token = 0; token < positions.size(); ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::size_t start =
          (token * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) *
          static_cast<std::size_t>(head_dim);
      for (std::int64_t j = 0; j < rotary_dim / 2; ++j) {
        const std::size_t real = start + static_cast<std::size_t>(j);
        const std::size_t imaginary = real + static_cast<std::size_t>(rotary_dim / 2);
        const double angle = positions[token] * rope_frequency(parameters, rotary_dim, j);
        const std::complex<double> turned =
            std::complex<double>(x[real], x[imaginary]) * std::polar(1.0, direction * angle);
        y[real] = turned.real();
        y[imaginary] = turned.imag();
      }
    }
  }
  return y;
}

}  // namespace shardwright::kernels::reference
