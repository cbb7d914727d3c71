// SPDX-License-Identifier: Apache-2.0
// cvt between the types that kernels use.
#include <cmath>

#include "tests/oracle/fp8.h"
#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

/// To nearest even; a NaN becomes the one of the PTX ISA.
std::uint16_t bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  const std::uint32_t kept = bits >> 16, rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1);
  return static_cast<std::uint16_t>(kept + (up ? 1 : 0));
}

template <class To, class From>
void add_plain_conversion(Operations& table, const std::string& opcode) {
  table[opcode] = lanewise<To, From>([](From from) { return static_cast<To>(from); });
}

using shardwright::kernels::Fp8Format;

/// The first number in the upper half.
template <Fp8Format kFormat>
void add_fp8_conversion(Operations& table, const std::string& opcode) {
  table[opcode] = lanewise<std::uint16_t, float, float>([](float high, float low) {
    const auto code = [](float value) {
      return shardwright::kernels::reference::nearest_fp8(kFormat, static_cast<double>(value));
    };
    return static_cast<std::uint16_t>(code(high) << 8 | code(low));
  });
}

}  // namespace

void add_conversions(Operations& table) {
  add_plain_conversion<std::uint64_t, std::uint32_t>(table, "cvt.u64.u32");
  add_plain_conversion<std::int64_t, std::int32_t>(table, "cvt.s64.s32");
  add_plain_conversion<std::uint32_t, std::uint64_t>(table, "cvt.u32.u64");
  add_plain_conversion<std::uint16_t, std::uint32_t>(table, "cvt.u16.u32");
  add_plain_conversion<std::uint32_t, std::uint16_t>(table, "cvt.u32.u16");
  add_plain_conversion<float, std::int32_t>(table, "cvt.rn.f32.s32");
  add_plain_conversion<double, std::int64_t>(table, "cvt.rn.f64.s64");
  add_plain_conversion<float, double>(table, "cvt.rn.f32.f64");
  add_plain_conversion<double, float>(table, "cvt.f64.f32");
  table["cvt.rzi.f32.f32"] = lanewise<float, float>([](float a) { return std::trunc(a); });
  table["cvt.sat.f32.f32"] =
      lanewise<float, float>([](float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; });
  table["cvt.rn.bf16.f32"] = lanewise<std::uint16_t, float>([](float a) { return bf16(a); });
  // The first number in the upper half.
  table["cvt.rn.bf16x2.f32"] = lanewise<std::uint32_t, float, float>([](float high, float low) {
    return static_cast<std::uint32_t>(std::uint32_t{bf16(high)} << 16 | bf16(low));
  });
  add_fp8_conversion<Fp8Format::kE4M3>(table, "cvt.rn.satfinite.e4m3x2.f32");
  add_fp8_conversion<Fp8Format::kE5M2>(table, "cvt.rn.satfinite.e5m2x2.f32");
}

}  // namespace ptx
