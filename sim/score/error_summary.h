// SPDX-License-Identifier: Apache-2.0
// Relative errors of predictions, condensed: mean, median and 90th percentile of |p/m - 1|.
#pragma once

#include <span>

#include "profiles/gpu_cost.h"

namespace shardwright::sim {

/// |predicted / measured - 1|; measured is positive.
double relative_error(double predicted, double measured);

/// Of errors as fractions. Percentiles are nearest-rank. All zero when there are none.
profiles::ErrorSummary summarize_errors(std::span<const double> errors);

}  // namespace shardwright::sim
