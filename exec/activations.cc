// SPDX-License-Identifier: Apache-2.0
#include "exec/activations.h"

#include <string_view>

#include "sim/core/check.h"

namespace shardwright::exec {

namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Tensor::kCount)> kNames = {
    "x",
    "norm1_saved2",
    "norm1_out",
    "qkv",
    "q_raw",
    "k_raw",
    "qk_norm_saved",
    "attention_out",
    "attention_stats",
    "x_mid",
    "norm2_saved2",
    "norm2_out",
    "gate_up",
    "up",
    "activation_out",
    "logits",
    "d_x",
    "d_activation",
    "d_gate_up",
    "d_norm2",
    "d_x_mid",
    "d_attention",
    "d_qkv",
    "d_norm1",
    "temporary"};

}  // namespace

Activations::Activations(const Schedule& schedule, const ArenaPlan& arena, std::byte* base)
    : schedule_(schedule),
      arena_(arena),
      base_(base),
      units_(static_cast<std::size_t>(schedule.units()) + 1),
      places_(schedule.tensor_names.size() * units_) {
  for (std::size_t tensor = 0; tensor < kNames.size(); ++tensor) {
    for (std::size_t slot = 1; slot < schedule.tensor_names.size(); ++slot) {
      if (kNames[tensor] == schedule.tensor_names[slot]) {
        slots_[tensor] = static_cast<std::uint16_t>(slot);
      }
    }
    SHARDWRIGHT_CHECK(slots_[tensor] != 0, "the schedule knows no tensor '{}'", kNames[tensor]);
  }
}

void Activations::acquire(std::size_t action, std::int32_t unit) {
  const MemoryAction& a = schedule_.memory[action];
  const auto owner = static_cast<std::size_t>(unit + a.offset);
  places_[a.tensor * units_ + owner] = {base_ + arena_.offset(schedule_, action, unit), a.bytes};
}

void* Activations::at(Tensor tensor, std::int32_t unit) const {
  const Place& found = place(slots_[static_cast<std::size_t>(tensor)], unit);
  SHARDWRIGHT_CHECK(found.data != nullptr, "'{}' of unit {} is used before it is acquired",
                    kNames[static_cast<std::size_t>(tensor)], unit);
  return found.data;
}

Bytes Activations::bytes(Tensor tensor, std::int32_t unit) const {
  return place(slots_[static_cast<std::size_t>(tensor)], unit).bytes;
}

Activations::Place Activations::released(std::size_t action, std::int32_t unit) const {
  const MemoryAction& a = schedule_.memory[action];
  return place(a.tensor, unit + a.offset);
}

}  // namespace shardwright::exec
