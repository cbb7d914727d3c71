// SPDX-License-Identifier: Apache-2.0
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
    places_.push_back({tensor.what, tensor.bytes, 0});
  }
  // Whole parameters of which the own part is the master are one array in two declarations.
  std::stable_partition(places_.begin(), places_.end(),
                        [](const Place& p) { return p.what == "compute parameters"; });
  std::stable_partition(places_.begin(), places_.end(),
                        [](const Place& p) { return p.what == "master parameters"; });
  Bytes offset = 0;
  for (Place& place : places_) {
    place.offset = offset;
    offset += round_up(place.bytes, kArenaAlignment);
  }
  persistent_bytes_ = offset;
  persistent_ = device.allocate(offset);
  activations_ = device.allocate(arena_.size_bytes);
}

const StepMemory::Place* StepMemory::find(std::string_view what) const {
  const auto at = std::find_if(places_.begin(), places_.end(),
                               [what](const Place& place) { return place.what == what; });
  return at == places_.end() ? nullptr : &*at;
}

void StepMemory::clear(Device& device, StreamId stream) const {
  device.zero(stream, persistent_->data(), persistent_bytes_);
}

bool StepMemory::declares(std::string_view what) const {
  return find(what) != nullptr;
}

void* StepMemory::persistent(std::string_view what, Bytes bytes) const {
  const Place* place = find(what);
  SHARDWRIGHT_CHECK(place != nullptr || bytes == 0, "the schedule declares no '{}'", what);
  if (place == nullptr) return nullptr;
  SHARDWRIGHT_CHECK(place->bytes == bytes, "the schedule declares {} bytes of {}, expected {}",
                    place->bytes, what, bytes);
  return static_cast<std::byte*>(persistent_->data()) + place->offset;
}

}  // namespace shardwright::exec
