// SPDX-License-Identifier: Apache-2.0
// The residuals of a group's targets as a function of some of its values: what is handed to the
// fitter.
//
// A GroupProblem moves the values of the profile that it was given and puts them back after each
// evaluation; only apply() leaves them moved. So it is not const while it predicts, and two of them
// must not share a profile at once.
#pragma once

#include <Eigen/Dense>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/calibrate/fit_group.h"
#include "sim/calibrate/rows.h"

namespace shardwright::sim {

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

/// The 97.5 % quantile of Student's t.
double student_975(double degrees_of_freedom);

using Indices = std::vector<std::size_t>;

class GroupProblem {
 public:
  /// All outlive the problem.
  GroupProblem(EditableProfile& profile, const std::vector<Adjustable>& values,
               const std::vector<Target>& targets, const Sharing& sharing);

  /// Residuals of `rows` as a function of the values of `free`. Lives as long as this.
  LadProblem problem(const Indices& free, const Indices& rows);
  /// Logarithms of what the profile had.
  std::vector<double> start(const Indices& free) const;
  /// Leaves the profile with the values of `free` at x, the others as they were.
  void apply(const Indices& free, const std::vector<double>& x);

  const Indices& all_rows() const { return all_rows_; }
  const Indices& all_values() const { return all_values_; }
  const std::vector<Adjustable>& values() const { return values_; }
  const std::vector<Target>& targets() const { return targets_; }
  double base(std::size_t j) const { return base_[j]; }

 private:
  std::vector<double> residuals(const Indices& free, const std::vector<double>& x,
                                const Indices& rows);

  EditableProfile& profile_;
  const std::vector<Adjustable>& values_;
  const std::vector<Target>& targets_;
  const Sharing& sharing_;
  std::vector<double*> numbers_;  // of the profile, by value
  std::vector<double> base_;
  Indices all_rows_, all_values_;
};

// Which values of a group its rows determine, and how much uncertainty the others leave about them.
//
// The information matrix of the values is looked at in units of what is believed beforehand. Its
// weakest direction is a combination of values that the rows hardly tell; as long as they leave it
// wider than half of the belief, one value with a good part in it is frozen at what the profile
// has: the one of the highest rank. A value that is frozen is not known, though: where rows see it,
// its uncertainty moves the free ones.

/// Columns of a matrix, in this order.
Eigen::MatrixXd columns(const Eigen::MatrixXd& matrix, const Indices& which);

/// Freezes values until the rows determine every direction of those that are left.
/// `slopes`: d residual / d value over the rows' noise, one column for each value.
void freeze_undetermined(const Eigen::MatrixXd& slopes, const std::vector<Adjustable>& values,
                         Indices& free);

/// Frozen values that the rows see and that leave uncertainty about the free ones.
Indices uncertain(const Indices& free, const std::vector<bool>& seen,
                  const std::vector<Adjustable>& values);

/// Covariance of the free values: `own` of the fit, and by uncertainty about the frozen ones.
/// `scale`: noise of the rows; `slopes` of all values.
Eigen::MatrixXd total_covariance(const Eigen::MatrixXd& own, const Eigen::VectorXd& scale,
                                 const Eigen::MatrixXd& slopes, const Indices& free,
                                 const Indices& frozen, const std::vector<Adjustable>& values);

/// The place in `free` of the value whose uncertainty is the largest part of what is believed;
/// none: all are within. A value of rank 0 carries the level of its rows, so it is judged by them
/// alone
/// (`own`): what frozen values leave open about it widens its interval, but the rows are not
/// predicted wrong for that.
std::optional<std::size_t> too_wide(const Eigen::MatrixXd& covariance, const Eigen::MatrixXd& own,
                                    const Indices& free, const std::vector<Adjustable>& values);

// Errors of a group's rows in fits that have not seen them.

/// log(predicted / measured) of every target by a fit of `free` to the others: five folds by what
/// the rows are, or each row by itself where there are few. NaN for rows that alone determine a
/// value: nothing can be held against them. `slopes` (standardized: over the rows' noise) are those
/// of all values at the full fit.
std::vector<double> held_out(GroupProblem& problem, const Indices& free, const LadFit& full,
                             const Eigen::MatrixXd& slopes, const Eigen::MatrixXd& standardized);

}  // namespace shardwright::sim
