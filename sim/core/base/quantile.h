// SPDX-License-Identifier: Apache-2.0
// Quantiles of a handful of numbers.
#pragma once

#include <vector>

namespace shardwright {

/// The `share` quantile (0.5: the median), between neighbours in proportion; 0 of nothing.
double quantile(std::vector<double> values, double share);

/// A value that was seen: the median, of an even number the larger of the middle two. 0 of nothing.
double upper_median(std::vector<double> values);

}  // namespace shardwright
