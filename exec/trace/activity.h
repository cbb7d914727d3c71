// SPDX-License-Identifier: Apache-2.0
// What a profiler of the device reports: kernels, copies, calls of the driver, its own overhead.
// Plain values, so that everything that is made of them is tested without a device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/core/units.h"

namespace shardwright::exec {

// What sees the work of a device from outside, kernel by kernel, where a device has such a thing
// (CUPTI); otherwise exec/recorder.h reads the device's clock around every operation.
//
// The recorder asks before a step whether it is watched. If so it says which operation the host is
// issuing, and afterwards takes over the spans that the tracer saw.

/// What a device and its driver did in a step, by the clock of std::chrono::steady_clock.
/// Span::name indexes `names`: the kernel, or the call.
struct TracedStep {
  std::vector<Span> spans;  // of the device
  std::vector<Span> host;   // calls of the driver and the tracer's own doings
  std::vector<std::string> names;
  std::vector<std::string> streams;  // by Span::stream; the schedule's come first
};

class StepTracer {
 public:
  virtual ~StepTracer() = default;
  /// Before a step, outside its time: whether it is watched. The device is idle.
  virtual bool begin_step(std::int32_t step) = 0;
  /// Around the issue of an operation, on the thread that issues it.
  virtual void begin_op(OpId id) = 0;
  virtual void end_op() = 0;
  /// What was seen of this rank's last step. The device is idle.
  virtual TracedStep take_step() = 0;
  /// What was recorded so far and what recording cost: one sentence.
  virtual std::string report() const = 0;
};

enum class ActivityKind : std::uint8_t { kKernel, kCopy, kSet, kCall, kWait, kOverhead };

struct Activity {
  ActivityKind kind = ActivityKind::kKernel;
  std::string name;            // of kernels as the compiler mangled it
  std::uint64_t begin_ns = 0;  // by the profiler's clock
  std::uint64_t end_ns = 0;
  std::uint32_t correlation = 0;  // the same for a call and what it starts on the device; 0: none
  std::uint32_t device = 0;       // where it runs
  std::uint32_t stream = 0;       // the driver's number, which is the device's own
  std::uint32_t thread = 0;       // of calls
  std::uint64_t bytes = 0;        // of copies and sets
};

struct ActivityLog {
  std::vector<Activity> activities;
  /// Correlation to the id that the launching thread had pushed: op_tag().
  std::unordered_map<std::uint32_t, std::uint64_t> tags;
  std::int64_t dropped = 0;  // records that found no buffer
  std::int64_t unread = 0;   // records of a kind or a version that is not known
};

/// What is pushed around the launches of an operation: the rank is part of it, because a process
/// may hold several ranks and has one profiler.
struct OpTag {
  std::int32_t rank = 0;
  OpId op = 0;
};
std::uint64_t op_tag(const OpTag& tag);
/// None for ids that somebody else pushed.
std::optional<OpTag> op_of_tag(std::uint64_t id);

/// NCCL's kernels wait for the slowest peer, so their times are no link speeds.
bool is_nccl_kernel(const std::string& name);
/// A kernel's name for people: without return type, arguments and this project's namespaces.
std::string kernel_name(const std::string& mangled);
/// A call's name without the version that the driver appends: "cudaLaunchKernel_v7000".
std::string call_name(const std::string& name);

// Times of one clock on another one: a line through two readings of both.
//
// A reading takes the profiler's clock between two looks at steady_clock, several times, and keeps
// the narrowest; half of its width is what the times may be off by.

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

// From a profiler's records to the spans of one rank's step: each kernel, copy and call under the
// operation whose launches were going on, by steady_clock.
//
// A record finds its operation by its correlation. What a library's own thread launched (NCCL's)
// has none; then the call that launched it lies within the time in which the host issued an
// operation, because the host waits there until the library is done. What no operation launched
// (the copy of the step's totals) belongs to the rank whose stream or thread it was and has no
// operation.

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

// The names of several timelines as those of one.

class NameTable {
 public:
  /// Adds to `names`, which outlives the table.
  explicit NameTable(std::vector<std::string>& names);
  std::int32_t index_of(const std::string& name);
  /// Turns indices into `from` into indices into the table.
  void rename(std::vector<Span>& spans, const std::vector<std::string>& from);

 private:
  std::vector<std::string>& names_;
  std::unordered_map<std::string, std::int32_t> places_;
};

}  // namespace shardwright::exec
