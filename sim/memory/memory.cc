// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/memory.h"

#include <algorithm>
#include <cstdlib>

#include "sim/core/features.h"
#include "sim/core/layout.h"
#include "sim/core/memory_actions.h"

namespace shardwright::sim {

namespace {

void note_device_calls(const AllocatorStats& before, const AllocatorStats& after, std::size_t id,
                       ReplayedMemory& result) {
  const std::int64_t frees = after.num_device_frees - before.num_device_frees;
  const std::int64_t calls = frees + after.num_device_allocs - before.num_device_allocs;
  if (calls == 0) return;
  if (result.device_calls.size() <= id) result.device_calls.resize(id + 1);
  std::int32_t& noted = result.device_calls[id];
  const auto sum = static_cast<std::int32_t>(std::abs(noted) + calls);
  noted = frees > 0 || noted > 0 ? sum : -sum;
}

}  // namespace

AllocatedPeak allocated_peak(const Schedule& schedule) {
  MemoryLevel now;
  for (const PersistentTensor& tensor : schedule.persistent)
    now.add(tensor.category(), tensor.bytes);
  AllocatedPeak peak;
  peak.start_bytes = now.bytes;
  peak.level = now;
  std::int32_t micro = 0;
  for (const Section& section : schedule.sections) {
    const std::int32_t first = micro;
    follow_repeats(section.repeats, now, [&](std::int32_t step) {
      for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
           ++b) {
        const Block& block = schedule.blocks[b];
        follow_repeats(block.repeats, now, [&](std::int32_t rep) {
          for (const MemoryAction& action : schedule.actions_of(block)) {
            now.add(action);
            if (now.bytes <= peak.level.bytes) continue;
            peak.level = now;
            peak.at = {0,
                       0,
                       block.first_op + action.op,
                       b,
                       block.first_unit + rep * block.unit_step,
                       first + step};
          }
        });
      }
    });
    micro = first + section.repeats;
  }
  peak.end_bytes = now.bytes;
  return peak;
}

ReplayedMemory replay_memory(const Schedule& schedule, const StepClock& clock,
                             CachingAllocator& allocator, std::vector<MemorySample>* samples,
                             Bytes give_up_bytes) {
  using BlockId = CachingAllocator::BlockId;
  ReplayedMemory result;
  for (const PersistentTensor& tensor : schedule.persistent) {
    if (!allocator.allocate(tensor.bytes, 0, 0)) {
      result.out_of_memory = true;
      return result;
    }
  }
  const auto units = static_cast<std::size_t>(schedule.units()) + 1;
  std::vector<BlockId> live(kTensorCount * units, CachingAllocator::kEmptyBlock);
  const auto at = [&](Tensor tensor, std::int32_t unit) -> BlockId& {
    return live[index_of(tensor) * units + static_cast<std::size_t>(std::max(unit, 0))];
  };
  std::vector<Nanoseconds> stream_done(schedule.streams.size());
  AllocatorStats before_last;
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps && !result.out_of_memory && !result.given_up; ++step) {
    if (step == kSteps - 1) before_last = allocator.stats();
    const Nanoseconds offset = step * clock.step_ns;
    MemoryActions actions(schedule);
    for_each_op(schedule, [&](const OpInstance& instance, const Op& op) {
      if (result.out_of_memory || result.given_up) return;
      const auto id = static_cast<std::size_t>(instance.id);
      const Nanoseconds host_now = offset + clock.issue_ns[id];
      if (op.work.kind != WorkKind::kHost) {
        stream_done[op.stream] = std::max(stream_done[op.stream], offset + clock.completion_ns[id]);
      }
      for (const MemoryAction& a : actions.of(instance)) {
        if (a.tensor == Tensor::kOffloaded) continue;  // which of the tensors is not said
        if (a.acquire) {
          const AllocatorStats before = allocator.stats();
          const auto got = allocator.allocate(a.bytes, a.stream, host_now);
          if (!got) {
            result.out_of_memory = true;
            return;
          }
          result.given_up = allocator.stats().reserved.now > give_up_bytes;
          if (step == kSteps - 1) note_device_calls(before, allocator.stats(), id, result);
          at(a.tensor, instance.unit + a.offset) = *got;
        } else if (a.offset == kAllUnits) {
          for (std::size_t unit = 0; unit < units; ++unit) {
            BlockId& slot = at(a.tensor, static_cast<std::int32_t>(unit));
            if (slot != CachingAllocator::kEmptyBlock) allocator.free(slot);
            slot = CachingAllocator::kEmptyBlock;
          }
        } else {
          BlockId& slot = at(a.tensor, instance.unit + a.offset);
          if (slot == CachingAllocator::kEmptyBlock) continue;
          if (a.used_on == 0xff) {
            allocator.free(slot);
          } else {
            allocator.free(slot, {a.used_on, stream_done[a.used_on]});
          }
          slot = CachingAllocator::kEmptyBlock;
        }
        if (samples != nullptr && step == kSteps - 1) {
          samples->push_back(
              {host_now - offset, allocator.stats().allocated.now, allocator.stats().reserved.now});
        }
      }
    });
  }
  const AllocatorStats& stats = allocator.stats();
  result.peak_allocated = stats.allocated.peak;
  result.peak_active = stats.active.peak;
  result.peak_reserved = stats.reserved.peak;
  result.retries = stats.num_alloc_retries - before_last.num_alloc_retries;
  return result;
}

std::vector<MemorySample> static_memory_curve(const Schedule& schedule, const StepClock& clock,
                                              Bytes reserved) {
  std::vector<MemorySample> samples;
  Bytes total = 0;
  for (const PersistentTensor& tensor : schedule.persistent) total += tensor.bytes;
  samples.push_back({0, total, reserved});
  MemoryActions actions(schedule);
  for_each_op(schedule, [&](const OpInstance& instance, const Op&) {
    const Bytes before = total;
    for (const MemoryAction& a : actions.of(instance)) total += a.acquire ? a.bytes : -a.bytes;
    if (total != before)
      samples.push_back(
          {clock.completion_ns[static_cast<std::size_t>(instance.id)], total, reserved});
  });
  return samples;
}

namespace {

/// Communicators that a rank is part of.
int communicators(const Layout& layout) {
  int count = 1;  // the world's
  for (const CommGroup group : {CommGroup::kTensor, CommGroup::kContext, CommGroup::kPipeline,
                                CommGroup::kExpert, CommGroup::kData}) {
    if (layout.group(group).size > 1) ++count;
  }
  return count;
}

}  // namespace

Bytes runtime_bytes(const profiles::Profile& profile, const Plan& plan) {
  const Bytes of_gpu = profile.cluster.gpu.runtime_bytes;
  if (!divides_replica(plan)) return of_gpu;
  const int count = communicators(layout_of(plan, profile.cluster));
  return of_gpu + static_cast<Bytes>(count * profile.stack.parallel.communicator_bytes);
}

bool knows_reserved(const Plan& plan, const Stack& stack) {
  const bool is_pipeline = plan.parallel.pp > 1;
  if (stack.memory == MemoryManager::kStatic) return !is_pipeline;
  return is_pipeline || stack.memory != MemoryManager::kCachingAllocator;
}

Bytes estimated_reserved_bytes(const MemoryPeak& allocated, const Stack& stack) {
  return allocated.bytes + static_cast<Bytes>(stack.parallel.fragmentation *
                                              static_cast<double>(allocated.passing_bytes));
}

Bytes least_reserved_bytes(const MemoryPeak& allocated, const Plan& plan, const Stack& stack) {
  return knows_reserved(plan, stack) ? estimated_reserved_bytes(allocated, stack) : allocated.bytes;
}

}  // namespace shardwright::sim
