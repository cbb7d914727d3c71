// SPDX-License-Identifier: Apache-2.0
#include "exec/step_memory.h"

#include "sim/core/base/check.h"

namespace shardwright::exec {

StepMemory::StepMemory(const Schedule& schedule, Communicator& shard, Device& device)
    : arena_(plan_arena(schedule)),
      placement_(schedule, shard.rank()),
      collective_(shard.allocate(device, placement_.collective_bytes())),
      persistent_(device.allocate(placement_.size_bytes() - placement_.collective_bytes())),
      activations_(device.allocate(arena_.size_bytes)) {}

void StepMemory::clear(Device& device, StreamId stream) const {
  const Bytes first = placement_.collective_bytes();
  device.zero(stream, collective_->data(), first);
  device.zero(stream, persistent_->data(), placement_.size_bytes() - first);
}

std::byte* StepMemory::persistent(Persistent kind) const {
  const Bytes offset = placement_.offset(kind);
  SHARDWRIGHT_CHECK(offset != PlacedArray::kNowhere, "the schedule keeps no {}", name_of(kind));
  return at(offset);
}

std::byte* StepMemory::at(Bytes offset) const {
  const Bytes first = placement_.collective_bytes();
  const Allocation& memory = offset < first ? *collective_ : *persistent_;
  return static_cast<std::byte*>(memory.data()) + (offset < first ? offset : offset - first);
}

}  // namespace shardwright::exec
