// SPDX-License-Identifier: Apache-2.0
// CUDA's bf16 types with correctly rounded conversions, as far as kernels here use them.
#pragma once

#include <bit>
#include <cstdint>

#include "tests/support/cuda_on_cpu/emulation.h"

struct alignas(2) __nv_bfloat16 {
  unsigned short x = 0;

  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    x = (bits & 0x7fffffffu) > 0x7f800000u
            ? static_cast<unsigned short>(0x7fff)
            : static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16_rn(float a) {
  return a;
}
inline float __bfloat162float(__nv_bfloat16 a) {
  return a;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {a, b};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) {
  return a.x;
}
