// SPDX-License-Identifier: Apache-2.0
// Units used everywhere: bytes are int64, engine times are int64 nanoseconds, rates are doubles in
// SI units per second. Names carry the unit (_bytes, _ns, _s, _flops).
#pragma once

#include <bit>
#include <cstdint>

namespace shardwright {

using Bytes = std::int64_t;
using Nanoseconds = std::int64_t;

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Smallest multiple of `multiple` that is not below `value`; both positive.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

constexpr bool is_power_of_two(std::int64_t value) {
  return std::has_single_bit(static_cast<std::uint64_t>(value));
}

// Types of numbers in parameters, gradients and optimizer state.

enum class DType : std::uint8_t { kFp32, kBf16 };
constexpr std::int64_t bytes_of(DType dtype) {
  return dtype == DType::kFp32 ? 4 : 2;
}

}  // namespace shardwright
