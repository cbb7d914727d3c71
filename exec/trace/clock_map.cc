// SPDX-License-Identifier: Apache-2.0
#include "exec/trace/clock_map.h"

#include <chrono>
#include <cmath>

namespace shardwright::exec {
namespace {

constexpr int kReadings = 16;
// Clocks that are read in one process never drift apart by more; a steeper line is noise of
// readings that lie close together.
constexpr double kMostDrift = 1e-3;
constexpr double kShortestNs = 1e6;

}  // namespace

Nanoseconds steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ClockReading read_clocks(const std::function<Nanoseconds()>& steady,
                         const std::function<std::uint64_t()>& other) {
  ClockReading best;
  for (int i = 0; i < kReadings; ++i) {
    const Nanoseconds before = steady();
    const std::uint64_t between = other();
    const Nanoseconds after = steady();
    const Nanoseconds half = (after - before + 1) / 2;
    if (i == 0 || half < best.uncertainty_ns) best = {between, before + (after - before) / 2, half};
  }
  return best;
}

ClockMap::ClockMap(const ClockReading& first, const ClockReading& last) : first_(first) {
  const double other = static_cast<double>(last.other_ns) - static_cast<double>(first.other_ns);
  const auto steady = static_cast<double>(last.steady_ns - first.steady_ns);
  if (other < kShortestNs) return;
  const double rate = steady / other;
  if (std::abs(rate - 1) < kMostDrift) rate_ = rate;
}

Nanoseconds ClockMap::to_steady(std::uint64_t other_ns) const {
  // The difference first: the clocks' own values have too many digits for a double.
  const auto apart = static_cast<std::int64_t>(other_ns - first_.other_ns);
  return first_.steady_ns + apart +
         static_cast<Nanoseconds>(std::llround((rate_ - 1) * static_cast<double>(apart)));
}

}  // namespace shardwright::exec
