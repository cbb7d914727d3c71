// SPDX-License-Identifier: Apache-2.0
#include "exec/step_memory.h"

#include <algorithm>
#include <map>

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

Sharding::Sharding(const Schedule& schedule, const ParameterLayout& layout,
                   const StepMemory& memory, std::int64_t shard_rank)
    : layout_(layout),
      shards_(schedule.sharding.shards),
      sums_whole_gradients_(schedule.sharding.sums_whole_gradients()),
      shard_rank_(shard_rank) {
  const auto array = [&memory](const PlacedArray& placed) {
    return placed ? Array{memory.at(placed.offset), placed.dtype, placed.size} : Array{};
  };
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    const UnitPlacement& at = memory.placement().unit(u);
    units_.push_back({.parameters = array(at.parameters),
                      .gradient = array(at.gradient),
                      .first_gradient = array(at.first_gradient),
                      .reduced = array(at.reduced),
                      .owned_source = array(at.owned_source),
                      .owned_master = array(at.owned_master),
                      .first_moment = array(at.first_moment),
                      .second_moment = array(at.second_moment),
                      .gradient_sum = array(at.gradient_sum),
                      .scratch = array(at.scratch)});
  }
}

Activations::Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base)
    : schedule_(schedule), arena_(arena), base_(base) {}

std::int32_t Activations::acquire(std::size_t action, std::int32_t unit, OpId op,
                                  std::uint32_t ordinal) {
  const MemoryAction& a = schedule_.memory[action];
  ArenaPlan::PassPlace place;
  if (arena_.passes.empty()) {
    place.offset = arena_.offset(schedule_, action, unit);
  } else {
    const auto number = static_cast<std::size_t>(op - schedule_.first_id);
    place = arena_.passes[arena_.first_of_op[number] + ordinal];
  }
  places_[key(a.tensor, unit + a.offset)] = {base_ + place.offset, a.bytes, place.slot};
  return place.slot;
}

void* Activations::at(const Operand& operand, std::int32_t unit) const {
  const Place& found = place(operand.tensor, unit + operand.offset);
  SHARDWRIGHT_CHECK(found.data != nullptr, "'{}' of unit {} is used before it is acquired",
                    name_of(operand.tensor), unit + operand.offset);
  return found.data;
}

Bytes Activations::bytes(const Operand& operand, std::int32_t unit) const {
  return place(operand.tensor, unit + operand.offset).bytes;
}

Activations::Place Activations::released(std::size_t action, std::int32_t unit) const {
  const MemoryAction& a = schedule_.memory[action];
  return place(a.tensor, unit + a.offset);
}

namespace {

/// Whether the operation reads its weight, not only writes its gradient.
bool reads_weight(const Op& op) {
  if (op.weight == Weight::kNone || op.kind == OpKind::kWeightGradient) return false;
  if (op.phase == Phase::kReduce) return false;
  const bool backward = op.phase == Phase::kBackward;
  return op.kind != OpKind::kAccumulate && !(op.kind == OpKind::kEmbedding && backward);
}

}  // namespace

Poison::Poison(const Schedule& schedule, const Sharding& sharding, bool active) : active_(active) {
  // Whole parameters hold the master or are gathered in place.
  if (!active || sharding.shards() != Sharded::kParameters) return;
  struct LastRead {
    OpId id;
    std::int32_t unit;
  };
  std::map<const void*, LastRead> last_read;  // by buffer
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    if (moves_activations(op)) return;
    if (op.kind == OpKind::kAllGather) {
      const std::int32_t unit = schedule.target(op, at.unit);
      const auto found = last_read.find(sharding.unit(unit).parameters.data);
      if (found == last_read.end()) return;
      dead_.emplace_back(found->second.id, found->second.unit);
      last_read.erase(found);
      return;
    }
    if (!reads_weight(op)) return;
    const ParameterLayout& layout = sharding.layout();
    const std::int32_t unit = layout.tensor(layout.weight(op.weight, at.unit).first).unit;
    last_read[sharding.unit(unit).parameters.data] = {at.id, unit};
  });
  for (const auto& [buffer, last] : last_read) dead_.emplace_back(last.id, last.unit);
  std::sort(dead_.begin(), dead_.end());
}

}  // namespace shardwright::exec
