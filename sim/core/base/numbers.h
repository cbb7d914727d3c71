// SPDX-License-Identifier: Apache-2.0
// Small arithmetic that several rooms need: divisors, quantiles, seconds, unions of stretches.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/units.h"

namespace shardwright {

// What a sentence about a size that does not divide something offers instead.

/// The divisors of `whole` next to `value`: "4 or 8".
std::string nearest_divisors(std::int64_t value, std::int64_t whole);

// Quantiles of a handful of numbers.

/// The `share` quantile (0.5: the median), between neighbours in proportion; 0 of nothing.
double quantile(std::vector<double> values, double share);

/// A value that was seen: the median, of an even number the larger of the middle two. 0 of nothing.
double upper_median(std::vector<double> values);

// From the simulator's whole nanoseconds to the seconds in which answers are given.

inline double seconds_of(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

class SpanUnion {
 public:
  SpanUnion() = default;
  /// Pairs {begin, end} in any order; those that end before they begin count nothing.
  explicit SpanUnion(std::vector<std::pair<Nanoseconds, Nanoseconds>> spans);

  Nanoseconds total() const { return covered_.empty() ? 0 : covered_.back(); }
  /// Nanoseconds of [begin, end) that lie in the union.
  Nanoseconds overlap(Nanoseconds begin, Nanoseconds end) const;

 private:
  Nanoseconds before(Nanoseconds at) const;  // covered before `at`
  std::vector<std::pair<Nanoseconds, Nanoseconds>> merged_;
  std::vector<Nanoseconds> covered_;  // up to the end of merged_[i]
};

// exp and log with the same bits on every machine.
//
// C libraries compute these by whatever instructions a processor has, so an interval that is
// printed with all its digits would differ between two machines, and between the program and the
// planner page. These add, multiply and divide doubles in one order, which IEEE 754 rounds alike
// everywhere. Within two units in the last place of the true value.

/// e to the power of `x`.
double portable_exp(double x);

/// exp(x) - 1, exact of small `x`, too.
double portable_expm1(double x);

/// The natural logarithm of `x`; minus infinity of 0, NaN of what is below.
double portable_log(double x);

/// `x` to the power of `y`, `x` above 0: the error grows with |y log x|.
double portable_pow(double x, double y);

}  // namespace shardwright
