// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/divisors.h"

#include <fmt/core.h>

#include <algorithm>

namespace shardwright {

std::string nearest_divisors(std::int64_t value, std::int64_t whole) {
  std::int64_t below = 1, above = whole;
  for (std::int64_t d = 1; d * d <= whole; ++d) {
    if (whole % d != 0) continue;
    for (const std::int64_t divisor : {d, whole / d}) {
      if (divisor <= value) below = std::max(below, divisor);
      if (divisor >= value) above = std::min(above, divisor);
    }
  }
  return below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

}  // namespace shardwright
