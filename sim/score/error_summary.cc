// SPDX-License-Identifier: Apache-2.0
#include "sim/score/error_summary.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardwright::sim {

double relative_error(double predicted, double measured) {
  return std::abs(predicted / measured - 1);
}

profiles::ErrorSummary summarize_errors(std::span<const double> errors) {
  profiles::ErrorSummary summary;
  if (errors.empty()) return summary;
  std::vector<double> sorted(errors.begin(), errors.end());
  std::sort(sorted.begin(), sorted.end());
  const auto rank = [&](double share) {
    const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::max<std::size_t>(at, 1) - 1];
  };
  double sum = 0;
  for (const double error : sorted) sum += error;
  summary.n = static_cast<std::int64_t>(sorted.size());
  summary.mape = sum / static_cast<double>(sorted.size());
  summary.median = rank(0.5);
  summary.p90 = rank(0.9);
  return summary;
}

}  // namespace shardwright::sim
