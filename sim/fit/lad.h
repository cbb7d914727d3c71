// SPDX-License-Identifier: Apache-2.0
// Least absolute deviations of logarithms, for predictions that cost microseconds.
//
// The objective is that of robust_objective.h with residuals in units of the rows' noise s_i,
// rounded off at half of it, so that outliers pull with constant force and the estimate is nearly
// as sharp as least squares without them. Levenberg-Marquardt on weights that are renewed at each
// step; the noise is estimated, not assumed. The covariance is that of an M-estimator (Huber 1981,
// ch. 7). Deterministic.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "sim/fit/robust_objective.h"

namespace shardwright::sim {

struct LadProblem {
  std::vector<RobustParameter> parameters;
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
