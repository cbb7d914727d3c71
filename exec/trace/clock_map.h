// SPDX-License-Identifier: Apache-2.0
// Times of one clock on another one: a line through two readings of both.
//
// A reading takes the profiler's clock between two looks at steady_clock, several times, and keeps
// the narrowest; half of its width is what the times may be off by.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/core/units.h"

namespace shardwright::exec {

Nanoseconds steady_now();

struct ClockReading {
  std::uint64_t other_ns = 0;
  Nanoseconds steady_ns = 0;
  Nanoseconds uncertainty_ns = 0;
};

/// `steady` and `other` read the clocks.
ClockReading read_clocks(const std::function<Nanoseconds()>& steady,
                         const std::function<std::uint64_t()>& other);

class ClockMap {
 public:
  ClockMap(const ClockReading& first, const ClockReading& last);
  Nanoseconds to_steady(std::uint64_t other_ns) const;

 private:
  ClockReading first_;
  double rate_ = 1;
};

}  // namespace shardwright::exec
