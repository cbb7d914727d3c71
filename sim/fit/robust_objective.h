// SPDX-License-Identifier: Apache-2.0
// What every robust fit here minimizes over x, the logarithms of positive constants:
//
//   sum_i w_i phi(r_i(x)) + 1/2 sum_j ((x_j - centre_j) / spread_j)^2,   phi(r) = sqrt(r^2 +
//   smooth^2)
//
// with r_i = log(predicted / measured). Absolute deviations shrug off rows that are wrong for
// reasons the model does not know; rounding them off below the precision of the rows makes them
// differentiable; the log-normal prior holds what the rows leave open.
//
// Two solvers stand beside each other because their residuals cost thousands of times differently.
// robust_fit.h has residuals that are whole predictions (milliseconds each, most of which a
// parameter cannot change): it asks for as few as it can, in parallel, one row at a time, and stops
// a tenth of a standard error from the minimum. lad.h has residuals that are formulas (all rows in
// microseconds): it goes to the minimum, estimates the noise on the way and gives covariances.
// Made into one, either would pay: the first with predictions that nobody needs, which is hours,
// the second with a minimum that is not reached, which shows in what counts as determined.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace shardwright::sim {

/// In logarithms.
struct RobustParameter {
  double lower = 0, upper = 0, centre = 0, spread = 1;

  double clamped(double x) const { return std::clamp(x, lower, upper); }
  /// The prior's slope and curvature.
  double slope(double x) const { return (x - centre) * precision(); }
  double precision() const { return 1 / (spread * spread); }
};

inline double rounded_abs(double r, double smooth) {
  return std::sqrt(r * r + smooth * smooth);
}

/// The prior's part of the objective.
template <typename Vector>
double prior_pull(const std::vector<RobustParameter>& parameters, const Vector& x) {
  double sum = 0;
  for (std::size_t j = 0; j < parameters.size(); ++j) {
    const RobustParameter& p = parameters[j];
    const double away = (x[static_cast<decltype(x.size())>(j)] - p.centre) / p.spread;
    sum += 0.5 * away * away;
  }
  return sum;
}

}  // namespace shardwright::sim
