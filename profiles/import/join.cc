// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/join.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"

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

namespace {

constexpr std::size_t kFewest = 8;
constexpr Nanoseconds kQueueFull = 50'000;  // a launch that takes longer waited for the device

enum class CallKind : std::uint8_t { kOther, kLaunch, kBlocking };

CallKind kind_of(std::string_view name) {
  const auto contains = [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (contains("GraphLaunch")) return CallKind::kBlocking;  // many kernels in one call
  if (contains("LaunchKernel")) return CallKind::kLaunch;
  if (contains("Synchronize") || contains("Malloc") || contains("Free") || contains("Memcpy")) {
    return CallKind::kBlocking;
  }
  return CallKind::kOther;
}

}  // namespace

std::vector<Observation> launch_costs(const TraceTables& tables, const RangeWalk& walk) {
  std::vector<CallKind> kinds(tables.names.size());
  for (NameId id = 0; id < kinds.size(); ++id) kinds[id] = kind_of(tables.names.text(id));
  const auto& calls = tables.calls;
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    if (kinds[calls[i].name] != CallKind::kOther) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(calls[a].thread, calls[a].begin, a) <
           std::tie(calls[b].thread, calls[b].begin, b);
  });
  std::map<std::pair<std::int32_t, Phase>, std::vector<double>> gaps;
  std::int32_t last_step = 0;
  Phase last_phase = Phase::kForward;
  bool usable = false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RuntimeCall& call = calls[order[i]];
    const bool good = kinds[call.name] == CallKind::kLaunch && call.end - call.begin < kQueueFull &&
                      !walk.inside_fsdp(call.range);
    const std::int32_t step = good ? walk.step(call.begin) : -1;
    const Phase phase = good ? walk.phase(call.range) : Phase::kForward;
    if (good && usable && i > 0 && calls[order[i - 1]].thread == call.thread && step == last_step &&
        phase == last_phase && step >= 0) {
      gaps[{step, phase}].push_back(static_cast<double>(call.begin - calls[order[i - 1]].begin) *
                                    1e-9);
    }
    usable = good;
    last_step = step;
    last_phase = phase;
  }
  std::vector<Observation> observations;
  for (auto& [key, list] : gaps) {
    if (list.size() < kFewest) continue;
    const double most = 10 * upper_median(list);
    double sum = 0;
    for (const double gap : list) sum += std::min(gap, most);
    Observation seen;
    seen.phase = key.second;
    seen.work.kind = WorkKind::kHost;
    seen.seconds = sum / static_cast<double>(list.size());
    seen.step = key.first;
    if (seen.seconds > 0) observations.push_back(seen);
  }
  return observations;
}

std::vector<Observation> step_costs(const TraceTables& tables, const RangeWalk& walk) {
  // By device and step: when its kernels begin and end.
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<Nanoseconds, Nanoseconds>> busy;
  for (const DeviceSpan& span : tables.device) {
    if (span.call == kNoIndex || span.work != DeviceWork::kKernel) continue;
    const std::int32_t step = walk.step(tables.calls[span.call].begin);
    if (step < 0) continue;
    const auto [at, is_new] =
        busy.try_emplace({span.device, step}, std::pair(span.begin, span.end));
    if (is_new) continue;
    at->second.first = std::min(at->second.first, span.begin);
    at->second.second = std::max(at->second.second, span.end);
  }
  std::vector<Observation> observations;
  for (const auto& [key, times] : busy) {
    const auto before = busy.find({key.first, key.second - 1});
    if (before == busy.end()) continue;
    Observation seen;
    seen.phase = Phase::kPrepare;
    seen.work.kind = WorkKind::kHost;
    seen.work.kernels = 0;
    seen.seconds = std::max(0.0, static_cast<double>(times.first - before->second.second) * 1e-9);
    seen.step = key.second;
    observations.push_back(seen);
  }
  return observations;
}

}  // namespace shardwright::profiles
