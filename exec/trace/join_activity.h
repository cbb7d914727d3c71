// SPDX-License-Identifier: Apache-2.0
// From a profiler's records to the spans of one rank's step: each kernel, copy and call under the
// operation whose launches were going on, by steady_clock.
//
// A record finds its operation by its correlation. What a library's own thread launched (NCCL's)
// has none; then the call that launched it lies within the time in which the host issued an
// operation, because the host waits there until the library is done. What no operation launched
// (the copy of the step's totals) belongs to the rank whose stream or thread it was and has no
// operation.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/trace/activity.h"
#include "exec/trace/clock_map.h"
#include "exec/trace/step_tracer.h"

namespace shardwright::exec {

/// Streams of the driver that a rank uses, those of the schedule first and in its order. One with
/// the name of an earlier one (a queue of messages) has its track.
struct RankStreams {
  std::vector<std::string> names;
  std::vector<std::uint32_t> numbers;
  std::uint32_t device = 0;  // ranks of one process may use several
};

/// When the host issued an operation, by steady_clock; ordered, one after the other.
struct IssuedOp {
  OpId op = 0;
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
};

struct JoinSummary {
  std::int64_t kernels = 0;
  std::int64_t nccl_kernels = 0;  // of these
  std::int64_t copies = 0;        // and sets
  std::int64_t calls = 0;
  std::int64_t without_op = 0;  // on the device
  std::int64_t dropped = 0;
  std::int64_t unread = 0;
  std::int64_t overheads = 0;
  Nanoseconds overhead_ns = 0;  // as the profiler says
};

/// "3 steps: 5121 kernels (96 of NCCL), ..."; a sentence without the full stop.
std::string describe(const JoinSummary& summary, std::int64_t steps);

/// The rank's part of the log. `all` are the streams of the ranks in this process, by rank; what
/// belongs to none of them is the lowest rank's. `issued` are the rank's operations.
TracedStep join_activity(const ActivityLog& log, const ClockMap& clock, std::int32_t rank,
                         const std::unordered_map<std::int32_t, RankStreams>& all,
                         const std::vector<IssuedOp>& issued, JoinSummary& summary);

}  // namespace shardwright::exec
