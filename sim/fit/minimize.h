// A small derivative-free minimizer for fits of a few to twenty positive parameters.
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
