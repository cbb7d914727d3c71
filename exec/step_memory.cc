// SPDX-License-Identifier: Apache-2.0
#include "exec/step_memory.h"

#include "sim/core/base/check.h"

namespace shardwright::exec {

StepMemory::StepMemory(const Schedule& schedule, std::int64_t shard_rank, Device& device)
    : arena_(plan_arena(schedule)),
      placement_(schedule, shard_rank),
      persistent_(device.allocate(placement_.size_bytes())),
      activations_(device.allocate(arena_.size_bytes)) {}

void StepMemory::clear(Device& device, StreamId stream) const {
  device.zero(stream, persistent_->data(), persistent_bytes());
}

std::byte* StepMemory::persistent(Persistent kind) const {
  const Bytes offset = placement_.offset(kind);
  SHARDWRIGHT_CHECK(offset != PlacedArray::kNowhere, "the schedule keeps no {}", name_of(kind));
  return persistent() + offset;
}

}  // namespace shardwright::exec
