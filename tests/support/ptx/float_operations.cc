// SPDX-License-Identifier: Apache-2.0
// Arithmetic of floats. What PTX rounds by a rule is rounded by that rule. What it calls
// approximate (ex2, rcp, div with .approx) is what the C library computes, as in the emulation of
// kernels; a GPU's result is within the bounds of the PTX ISA of that (a relative 2^-22 or 2 ulp),
// which the tolerances of the tests on a GPU allow for.
#include <cfenv>
#include <cmath>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

/// Subnormal numbers become zeros.
float flushed(float a) {
  return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a;
}

float exponential_of_two(float a) {
  return std::exp2(a);
}

float fma_rounded_down(float a, float b, float c) {
  const volatile float x = a, y = b, z = c;
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  const volatile float result = std::fma(x, y, z);
  std::fesetround(before);
  return result;
}

template <class T>
void add_float_arithmetic(Operations& table, const std::string& type) {
  const std::string rounded = "rn." + type;
  table["add." + rounded] = lanewise<T, T, T>([](T a, T b) { return a + b; });
  table["sub." + rounded] = lanewise<T, T, T>([](T a, T b) { return a - b; });
  table["mul." + rounded] = lanewise<T, T, T>([](T a, T b) { return a * b; });
  // Without a rounding in its name the compiler of machine code may fuse them; here it does not.
  table["add." + type] = table["add." + rounded];
  table["sub." + type] = table["sub." + rounded];
  table["mul." + type] = table["mul." + rounded];
  table["div." + rounded] = lanewise<T, T, T>([](T a, T b) { return a / b; });
  table["rcp." + rounded] = lanewise<T, T>([](T a) { return T{1} / a; });
  table["sqrt." + rounded] = lanewise<T, T>([](T a) { return std::sqrt(a); });
  table["fma." + rounded] = lanewise<T, T, T, T>([](T a, T b, T c) { return std::fma(a, b, c); });
  table["neg." + type] = lanewise<T, T>([](T a) { return -a; });
  table["abs." + type] = lanewise<T, T>([](T a) { return std::abs(a); });
  table["min." + type] = lanewise<T, T, T>([](T a, T b) { return std::fmin(a, b); });
  table["max." + type] = lanewise<T, T, T>([](T a, T b) { return std::fmax(a, b); });
  // The sign of the first, the magnitude of the second.
  table["copysign." + type] = lanewise<T, T, T>([](T a, T b) { return std::copysign(b, a); });
}

}  // namespace

void add_float_operations(Operations& table) {
  add_float_arithmetic<float>(table, "f32");
  add_float_arithmetic<double>(table, "f64");
  table["fma.rm.f32"] = lanewise<float, float, float, float>(
      [](float a, float b, float c) { return fma_rounded_down(a, b, c); });
  table["ex2.approx.f32"] = lanewise<float, float>([](float a) { return exponential_of_two(a); });
  table["ex2.approx.ftz.f32"] =
      lanewise<float, float>([](float a) { return flushed(exponential_of_two(flushed(a))); });
  table["rcp.approx.ftz.f32"] =
      lanewise<float, float>([](float a) { return flushed(1.0f / flushed(a)); });
  table["div.approx.f32"] = lanewise<float, float, float>([](float a, float b) { return a / b; });
  // Its lower 32 bits are zeros, by the PTX ISA.
  table["rcp.approx.ftz.f64"] = lanewise<double, double>(
      [](double a) { return from_bits<double>(to_bits(1.0 / a) & 0xffffffff00000000u); });
}

}  // namespace ptx
