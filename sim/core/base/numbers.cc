// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

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

SpanUnion::SpanUnion(std::vector<std::pair<Nanoseconds, Nanoseconds>> spans) {
  std::sort(spans.begin(), spans.end());
  for (const auto& [begin, end] : spans) {
    if (end <= begin) continue;
    if (!merged_.empty() && begin <= merged_.back().second) {
      merged_.back().second = std::max(merged_.back().second, end);
    } else {
      merged_.emplace_back(begin, end);
    }
  }
  Nanoseconds sum = 0;
  for (const auto& [begin, end] : merged_) covered_.push_back(sum += end - begin);
}

Nanoseconds SpanUnion::before(Nanoseconds at) const {
  const auto after = std::partition_point(merged_.begin(), merged_.end(),
                                          [&](const auto& piece) { return piece.second <= at; });
  const auto index = static_cast<std::size_t>(after - merged_.begin());
  const Nanoseconds whole = index == 0 ? 0 : covered_[index - 1];
  return after == merged_.end() ? whole : whole + std::max<Nanoseconds>(0, at - after->first);
}

Nanoseconds SpanUnion::overlap(Nanoseconds begin, Nanoseconds end) const {
  return end <= begin ? 0 : before(end) - before(begin);
}

}  // namespace shardwright
