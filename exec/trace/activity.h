// SPDX-License-Identifier: Apache-2.0
// What a profiler of the device reports: kernels, copies, calls of the driver, its own overhead.
// Plain values, so that everything that is made of them is tested without a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
