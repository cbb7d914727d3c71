// SPDX-License-Identifier: Apache-2.0
// Costs are real seconds; timelines count whole nanoseconds.
#pragma once

#include <cmath>

#include "sim/core/units.h"

namespace shardwright::sim {

/// No kernel or transfer of a step takes ten days.
inline constexpr double kLongestOperation_s = 10 * 24 * 3600;
/// A century, beyond which sums of nanoseconds would end.
inline constexpr double kLongestStep_s = 100.0 * 365 * 24 * 3600;

/// Throws Error: `what` would take `seconds`.
[[noreturn]] void refuse_duration(const char* what, double seconds);

/// Throws Error for what is longer than kLongestOperation_s or no number, as of a rate that no
/// machine has.
inline Nanoseconds to_ns(double seconds) {
  if (!(seconds <= kLongestOperation_s)) refuse_duration("one operation of the step", seconds);
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

}  // namespace shardwright::sim
