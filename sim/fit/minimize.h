// SPDX-License-Identifier: Apache-2.0
// A small derivative-free minimizer for fits of a few to twenty positive parameters.
//
// For the formulas of single kernels and collectives (fit_gemm, fit_attention, fit_collectives):
// they take nanoseconds, so evaluations are free; what is minimized there is the mean absolute
// error of tables whose rows are best explained by different tiles and protocols, so slopes say
// little and the robust fits (robust_objective.h), which live on slopes, end at the next corner.
//
// Nelder-Mead with the dimension-adapted coefficients of Gao and Han (2012), restarted from its own
// result with a fresh simplex until a restart no longer helps: objectives here are piecewise smooth
// (minima over tiles, protocol switches), on which one simplex stalls. Parameters are handled as
// logarithms, so they stay positive and steps are relative. Deterministic.
#pragma once

#include <functional>
#include <vector>

namespace shardwright::sim {

struct MinimizeOptions {
  int max_evaluations = 20000;  ///< in all
  double first_step = 0.3;      ///< of the logarithms
  double tolerance = 1e-6;      ///< a restart must improve the objective by this share
};

struct Minimum {
  std::vector<double> at;
  double value = 0;
  int evaluations = 0;
};

/// Minimizes f over positive parameters, starting at `start` (all above 0).
Minimum minimize_positive(const std::function<double(const std::vector<double>&)>& f,
                          const std::vector<double>& start, MinimizeOptions options = {});

}  // namespace shardwright::sim
