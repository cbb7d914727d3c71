// SPDX-License-Identifier: Apache-2.0
// The groups of values that calibration fits together and whose errors are counted together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwright::profiles {

enum class CostGroup : std::uint8_t {
  kProducts,
  kAttention,
  kMemory,
  kCollectives,
  kHost,
  kContention
};
inline constexpr std::size_t kCostGroups = 6;
/// "products", "attention", "memory", "collectives", "host", "contention".
std::string_view name_of(CostGroup group);

}  // namespace shardwright::profiles
