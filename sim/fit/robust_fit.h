// SPDX-License-Identifier: Apache-2.0
// Robust fits of a few positive constants to many measurements, when a prediction is expensive.
//
// The objective is that of robust_objective.h with phi over kResidualScale. Gauss-Newton on the
// absolute values: the residuals are linearized by differences, the linear problem (convex) is
// solved by coordinate descent, the step is taken as far as the true objective falls.
// Deterministic, also in parallel.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "sim/fit/robust_objective.h"

namespace shardwright::sim {

/// A typical error of a published time, and what its digits resolve.
inline constexpr double kResidualScale = 0.03;
inline constexpr double kResolved = 0.005;

struct RobustProblem {
  std::vector<RobustParameter> parameters;
  std::size_t rows = 0;
  /// The residual of a row. Called by several threads.
  std::function<double(std::size_t row, const std::vector<double>& x)> residual;
  /// Whether a parameter can change a row's residual at all.
  std::function<bool(std::size_t row, std::size_t parameter)> sees;
  unsigned threads = 0;  // 0: all cores
};

struct RobustFit {
  std::vector<double> x;
  std::vector<double> residuals;  // at x, of every row, also of those that weigh nothing
  std::vector<double> jacobian;   // rows x parameters, taken at jacobian_at
  std::vector<double> jacobian_at;
  double objective = 0;
  std::size_t evaluations = 0;  // of single residuals
};

/// From the priors' centres. A row of weight 0 does not take part.
RobustFit fit_robust(const RobustProblem& problem, const std::vector<double>& weights);

/// From the fit to all rows and by its slopes: for weights that leave out a few of them, in a small
/// part of the time, because only rows that weigh nothing are predicted while the constants stay
/// where the slopes hold. Residuals of the others are not renewed. `full` is fit_robust's of the
/// same problem, no row of which weighed nothing.
RobustFit refit_robust(const RobustProblem& problem, const std::vector<double>& weights,
                       const RobustFit& full);

/// Standard errors of x by what the rows resolve (Laplace noise of their mean absolute residual)
/// and the prior, ignoring that the model may be wrong.
std::vector<double> standard_errors(const RobustProblem& problem,
                                    const std::vector<double>& weights, const RobustFit& fit);

}  // namespace shardwright::sim
