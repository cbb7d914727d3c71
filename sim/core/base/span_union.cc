// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/span_union.h"

#include <algorithm>

namespace shardwright {

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
