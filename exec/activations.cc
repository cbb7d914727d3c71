// SPDX-License-Identifier: Apache-2.0
#include "exec/activations.h"

#include "sim/core/base/check.h"

namespace shardwright::exec {

Activations::Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base)
    : schedule_(schedule),
      arena_(arena),
      base_(base),
      units_(static_cast<std::size_t>(schedule.units()) + 1),
      places_(kTensorCount * units_) {}

void Activations::acquire(std::size_t action, std::int32_t unit) {
  const MemoryAction& a = schedule_.memory[action];
  const auto owner = static_cast<std::size_t>(unit + a.offset);
  places_[index_of(a.tensor) * units_ + owner] = {base_ + arena_.offset(schedule_, action, unit),
                                                  a.bytes};
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
