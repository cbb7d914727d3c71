// SPDX-License-Identifier: Apache-2.0
// What counts as doubled: numbers of stages and of GPUs.
#pragma once

#include <bit>
#include <cstdint>

namespace shardwright::tuner {

inline bool is_power_of_two(std::int64_t value) {
  return std::has_single_bit(static_cast<std::uint64_t>(value));
}

}  // namespace shardwright::tuner
