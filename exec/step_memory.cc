#include "exec/step_memory.h"

#include <algorithm>

#include "sim/core/check.h"

namespace shardwright::exec {

Bytes StepMemory::planned_bytes(const Schedule& schedule) {
  Bytes bytes = plan_arena(schedule).size_bytes;
  for (const PersistentTensor& tensor : schedule.persistent) {
    bytes += round_up(tensor.bytes, kArenaAlignment);
  }
  return bytes;
}

StepMemory::StepMemory(const Schedule& schedule, Device& device) : arena_(plan_arena(schedule)) {
  for (const PersistentTensor& tensor : schedule.persistent) {
    places_.push_back({tensor.kind, tensor.bytes, 0});
  }
  // Whole parameters of which the own part is the master are one array in two declarations.
  std::stable_partition(places_.begin(), places_.end(),
                        [](const Place& p) { return p.kind == Persistent::kWholeParameters; });
  std::stable_partition(places_.begin(), places_.end(),
                        [](const Place& p) { return p.kind == Persistent::kMaster; });
  Bytes offset = 0;
  for (Place& place : places_) {
    place.offset = offset;
    offset += round_up(place.bytes, kArenaAlignment);
  }
  persistent_bytes_ = offset;
  persistent_ = device.allocate(offset);
  activations_ = device.allocate(arena_.size_bytes);
}

const StepMemory::Place* StepMemory::find(Persistent kind) const {
  const auto at = std::find_if(places_.begin(), places_.end(),
                               [kind](const Place& place) { return place.kind == kind; });
  return at == places_.end() ? nullptr : &*at;
}

void StepMemory::clear(Device& device, StreamId stream) const {
  device.zero(stream, persistent_->data(), persistent_bytes_);
}

bool StepMemory::declares(Persistent kind) const {
  return find(kind) != nullptr;
}

void* StepMemory::persistent(Persistent kind, Bytes bytes) const {
  const Place* place = find(kind);
  SHARDWRIGHT_CHECK(place != nullptr || bytes == 0, "the schedule declares no '{}'", name_of(kind));
  if (place == nullptr) return nullptr;
  SHARDWRIGHT_CHECK(place->bytes == bytes, "the schedule declares {} bytes of {}, expected {}",
                    place->bytes, name_of(kind), bytes);
  return static_cast<std::byte*>(persistent_->data()) + place->offset;
}

}  // namespace shardwright::exec
