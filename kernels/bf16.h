// SPDX-License-Identifier: Apache-2.0
// The bfloat16 storage type: the upper half of an IEEE float, 8 bits of precision.
//
// Arithmetic is never done in it; kernels widen to fp32, compute, and round once when they store.
// Eigen's and CUDA's own types have the same 16 bits, so buffers can be reinterpreted.
#pragma once

#include <bit>
#include <cstdint>

namespace shardwright::kernels {

struct BFloat16 {
  std::uint16_t bits;
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};

constexpr float to_float(float value) {
  return value;
}
constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to the nearest bfloat16, ties to even; overflow gives infinity, NaN stays NaN.
constexpr BFloat16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// Rounds up or down with a probability that makes the expectation equal `value`: adds 16 random
/// bits below the kept ones and cuts. A value that bfloat16 holds is never changed; NaN stays NaN,
/// and the largest finite values may round to infinity as in to_bf16.
constexpr BFloat16 to_bf16_stochastic(float value, std::uint16_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return to_bf16(value);
  return {static_cast<std::uint16_t>((bits + random) >> 16)};
}

template <class T>
constexpr T from_float(float value);
template <>
constexpr float from_float<float>(float value) {
  return value;
}
template <>
constexpr BFloat16 from_float<BFloat16>(float value) {
  return to_bf16(value);
}

}  // namespace shardwright::kernels
