// SPDX-License-Identifier: Apache-2.0
#include "exec/activations.h"

#include "sim/core/base/check.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
