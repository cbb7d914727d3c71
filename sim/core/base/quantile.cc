// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace shardwright {

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double place = share * static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), at, values.end());
  const double fraction = place - std::floor(place);
  if (fraction == 0) return *at;
  return *at + fraction * (*std::min_element(at + 1, values.end()) - *at);
}

double upper_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shardwright
