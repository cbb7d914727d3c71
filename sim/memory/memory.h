// SPDX-License-Identifier: Apache-2.0
// Memory of a step, from the same schedule that is timed.
//
// Three views: the peak of what is allocated (liveness in host order; exact, needs no clock), the
// layout of static arenas (sim/core/arena.h), and a replay through the caching allocator with the
// host and completion times of a simulated step, which gives what is active and reserved.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/memory/allocator.h"

namespace shardwright::sim {

/// Of what is allocated at the fullest moment, all and what comes and goes with micro-batches:
/// activations and logits.
struct MemoryPeak {
  Bytes bytes = 0, passing_bytes = 0;
};

constexpr bool passes_with_micro_batch(MemoryCategory category) {
  return category == MemoryCategory::kActivations || category == MemoryCategory::kLoss;
}

/// What is allocated at a moment.
struct MemoryLevel {
  Bytes bytes = 0;
  std::array<Bytes, kMemoryCategories> by_category{};

  void add(MemoryCategory category, Bytes more) {
    by_category[static_cast<std::size_t>(category)] += more;
    bytes += more;
  }
  void add(const MemoryAction& action) {
    add(action.category, action.acquire ? action.bytes : -action.bytes);
  }
  void add(const MemoryLevel& more, std::int64_t times = 1) {
    bytes += times * more.bytes;
    for (std::size_t c = 0; c < by_category.size(); ++c)
      by_category[c] += times * more.by_category[c];
  }
  Bytes of(MemoryCategory category) const {
    return by_category[static_cast<std::size_t>(category)];
  }
  MemoryPeak peak() const {
    return {bytes, of(MemoryCategory::kActivations) + of(MemoryCategory::kLoss)};
  }
};

/// Calls once(repetition), which changes `level`, for those of a block's repetitions that show
/// every level: the first two and the last; between them the level changes each time by as much.
template <typename Once>
void follow_repeats(std::int32_t repeats, MemoryLevel& level, Once&& once) {
  if (repeats == 0) return;
  once(0);
  if (repeats == 1) return;
  MemoryLevel before = level;
  once(1);
  if (repeats == 2) return;
  MemoryLevel change = level;
  change.add(before, -1);
  level.add(change, repeats - 3);
  once(repeats - 1);
}

struct AllocatedPeak {
  MemoryLevel level;
  OpInstance at;        // the operation during which it is reached (id is not set)
  Bytes end_bytes = 0;  // when the step is over: what it was at the start
  Bytes start_bytes = 0;
};

/// Exact peak of allocated bytes over the step. Repetitions are not walked one by one.
AllocatedPeak allocated_peak(const Schedule& schedule);

/// When the host issues and the device completes each operation of a step, by OpId.
struct StepClock {
  const std::vector<Nanoseconds>& issue_ns;
  const std::vector<Nanoseconds>& completion_ns;
  Nanoseconds step_ns = 0;
};

struct ReplayedMemory {
  Bytes peak_allocated = 0, peak_active = 0, peak_reserved = 0;
  std::int64_t retries = 0;  // of the last step: cached memory given back for want of free memory
  /// cudaMalloc and cudaFree calls of the last step, by OpId; empty when there is none. Below 0
  /// (and as many) where the operation only asked for more: then nothing waits for the device.
  std::vector<std::int32_t> device_calls;
  bool out_of_memory = false;
  bool given_up = false;  // at the bytes that replay_memory() was told
};

/// Replays three steps through `allocator`: the first fills its cache, the others meet it.
/// `samples` receives the curve of the last step when given. Ends as soon as more than
/// `give_up_bytes` are reserved, and says no more than that.
ReplayedMemory replay_memory(const Schedule& schedule, const StepClock& clock,
                             CachingAllocator& allocator,
                             std::vector<MemorySample>* samples = nullptr,
                             Bytes give_up_bytes = AllocatorOptions::kUnlimited);

/// The allocated curve of a static-memory step, at completion times.
std::vector<MemorySample> static_memory_curve(const Schedule& schedule, const StepClock& clock,
                                              Bytes reserved);

// What a GPU holds beside live tensors: contexts and communicators, and what the framework's
// allocator keeps.

/// Contexts, libraries and communicators of a rank, that of data parallelism included.
Bytes runtime_bytes(const profiles::Profile& profile, const Plan& plan);

/// Whether what the framework reserves follows from the tensors that are alive; else its allocator
/// is replayed over the step, or all that passes of a pipeline bring to life is given its place.
bool knows_reserved(const Plan& plan, const Stack& stack);

/// What an allocator that is not replayed takes.
Bytes estimated_reserved_bytes(const MemoryPeak& allocated, const Stack& stack);

/// The same where the allocator is not to be replayed; else the least that it can take.
Bytes least_reserved_bytes(const MemoryPeak& allocated, const Plan& plan, const Stack& stack);

}  // namespace shardwright::sim
