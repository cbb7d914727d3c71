// SPDX-License-Identifier: Apache-2.0
// The union of stretches of time, and how much of a given stretch it covers.
#pragma once

#include <utility>
#include <vector>

#include "sim/core/units.h"

namespace shardwright {

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

}  // namespace shardwright
