// SPDX-License-Identifier: Apache-2.0
// Least absolute deviations of logarithms, for predictions that cost microseconds. Minimized over
// x, the logarithms of positive constants, is
//
//   sum_i phi(r_i(x) / s_i) + 1/2 sum_j ((x_j - centre_j) / spread_j)^2
//
// with r_i = log(predicted / measured), s_i the rows' noise and phi(z) = |z|, rounded off at half
// of it: absolute deviations shrug off rows that are wrong for reasons the model does not know, and
// the estimate is nearly as sharp as least squares without them; the log-normal prior holds what
// the rows leave open. Levenberg-Marquardt on weights that are renewed at each step; the noise is
// estimated, not assumed. The covariance is that of an M-estimator (Huber 1981, ch. 7).
// Deterministic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace shardwright::sim {

/// In logarithms.
struct LadParameter {
  double lower = 0, upper = 0, centre = 0, spread = 1;

  double clamped(double x) const { return std::clamp(x, lower, upper); }
  /// The prior's slope and curvature.
  double slope(double x) const { return (x - centre) * precision(); }
  double precision() const { return 1 / (spread * spread); }
};

struct LadProblem {
  std::vector<LadParameter> parameters;
  /// log(predicted / measured) of every row at x.
  std::function<std::vector<double>(const std::vector<double>& x)> residuals;
  /// Standard deviation of a row's own noise, known beforehand (spread over root of count).
  std::vector<double> noise;
};

/// Matrices by columns.
struct LadFit {
  std::vector<double> x;
  std::vector<double> residuals;
  std::vector<double> scale;       // s_i: own noise and what the model misses
  std::vector<double> covariance;  // of x; without the prior
};

/// What is missed is believed to be 5 % where there are hardly more rows than parameters.
/// From `start`; scales are estimated between rounds. A problem without parameters is only scaled.
LadFit fit_lad(const LadProblem& problem, const std::vector<double>& start);

/// d residuals / dx by central differences: rows x parameters, by columns.
std::vector<double> jacobian_of(const LadProblem& problem, const std::vector<double>& x);

/// Robust standard deviation of residuals that `parameters` values were fitted to: as many of the
/// smallest are left out, because a fit to absolute values passes through them.
double robust_deviation(std::vector<double> residuals, std::size_t parameters);

/// The 97.5 % quantile of Student's t.
double student_975(double degrees_of_freedom);

}  // namespace shardwright::sim
