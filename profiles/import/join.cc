// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/join.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "sim/core/base/ends.h"

namespace shardwright::profiles {
namespace {

/// Innermost open range while walking along one thread after the other.
class Nesting {
 public:
  explicit Nesting(const std::deque<HostRange>& ranges) : ranges_(ranges) {}

  /// The innermost range that contains `at`; call with (thread, at) ascending.
  std::uint32_t innermost(std::uint32_t thread, Nanoseconds at) {
    while (next_ < ranges_.size() &&
           std::tie(ranges_[next_].thread, ranges_[next_].begin) <= std::tie(thread, at)) {
      open(static_cast<std::uint32_t>(next_));
      ++next_;
    }
    close(thread, at);
    return innermost_open();
  }

  /// The parent of the range `index`, which is then open itself; call with ascending index.
  std::uint32_t open(std::uint32_t index) {
    close(ranges_[index].thread, ranges_[index].begin);
    const std::uint32_t parent = innermost_open();
    stack_.push_back(index);
    return parent;
  }

 private:
  void close(std::uint32_t thread, Nanoseconds at) {
    for (std::uint32_t last = innermost_open();
         last != kNoIndex && (ranges_[last].thread != thread || ranges_[last].end <= at);
         last = innermost_open()) {
      stack_.pop_back();
    }
  }

  std::uint32_t innermost_open() const {
    return stack_.empty() ? kNoIndex : last_of(stack_, "the stack of ranges");
  }

  const std::deque<HostRange>& ranges_;
  std::vector<std::uint32_t> stack_;
  std::size_t next_ = 0;
};

template <typename Less>
std::vector<std::uint32_t> order_of(std::size_t size, Less less) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), less);
  return order;
}

}  // namespace

JoinCounts join(TraceTables& tables) {
  JoinCounts counts;
  // Of two with the same times the one that the profiler wrote first is the outer one.
  std::stable_sort(tables.ranges.begin(), tables.ranges.end(),
                   [](const HostRange& a, const HostRange& b) {
                     return std::tie(a.thread, a.begin, b.end) < std::tie(b.thread, b.begin, a.end);
                   });
  Nesting parents(tables.ranges);
  for (std::uint32_t i = 0; i < tables.ranges.size(); ++i)
    tables.ranges[i].parent = parents.open(i);

  const auto& calls = tables.calls;
  Nesting around(tables.ranges);
  for (const std::uint32_t i : order_of(calls.size(), [&](std::uint32_t a, std::uint32_t b) {
         return std::tie(calls[a].thread, calls[a].begin, a) <
                std::tie(calls[b].thread, calls[b].begin, b);
       })) {
    tables.calls[i].range = around.innermost(calls[i].thread, calls[i].begin);
  }

  const std::vector<std::uint32_t> by_id =
      order_of(calls.size(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(calls[a].correlation, calls[a].begin, a) <
               std::tie(calls[b].correlation, calls[b].begin, b);
      });
  for (std::size_t i = 1; i < by_id.size(); ++i) {
    const auto id = calls[by_id[i]].correlation;
    counts.ambiguous += id != 0 && id == calls[by_id[i - 1]].correlation;
  }
  for (DeviceSpan& span : tables.device) {
    if (span.correlation != 0) {
      auto after = std::upper_bound(by_id.begin(), by_id.end(), span,
                                    [&](const DeviceSpan& s, std::uint32_t call) {
                                      return std::tie(s.correlation, s.begin) <
                                             std::tie(calls[call].correlation, calls[call].begin);
                                    });
      if (after != by_id.begin() && calls[*(after - 1)].correlation == span.correlation) {
        span.call = *(after - 1);
      } else if (after != by_id.end() && calls[*after].correlation == span.correlation) {
        span.call = *after;  // the clocks of host and device differ by a little
      }
    }
    counts.without_call += span.call == kNoIndex;
  }
  return counts;
}

}  // namespace shardwright::profiles
