// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8.h"

#include "kernels/host/simd/ops.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

template <Fp8Format kFormat>
void encode(const float* in, float scale, std::uint8_t* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kernels::to_fp8<kFormat>(in[i] * scale);
}

template <Fp8Format kFormat>
void decode(const std::uint8_t* in, float scale, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kernels::fp8_to_float<kFormat>(in[i]) * scale;
}

}  // namespace

std::uint32_t largest_magnitude(const float* x, std::int64_t n) {
  const auto* words = reinterpret_cast<const std::int32_t*>(x);
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t magnitude = words[i] & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

void to_fp8(Fp8Format format, const float* in, float scale, std::uint8_t* out, std::int64_t n) {
  if (format == Fp8Format::kE4M3) return encode<Fp8Format::kE4M3>(in, scale, out, n);
  encode<Fp8Format::kE5M2>(in, scale, out, n);
}

void from_fp8(Fp8Format format, const std::uint8_t* in, float scale, float* out, std::int64_t n) {
  if (format == Fp8Format::kE4M3) return decode<Fp8Format::kE4M3>(in, scale, out, n);
  decode<Fp8Format::kE5M2>(in, scale, out, n);
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
