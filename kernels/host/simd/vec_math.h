// SPDX-License-Identifier: Apache-2.0
// Exponentials on a vector register, for softmax and activations.
//
// exp follows Cephes' expf (S. Moshier): x = n ln 2 + r, a polynomial in r, and 2^n put together
// from its bits; within 2 units in the last place of the exact value (tested).
#pragma once

#include <cmath>

#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

/// e^x; 0 below -87.3, about 2e38 above 88.3, NaN for NaN.
SHARDWRIGHT_INLINE Vec exponential(Vec x) {
  const Vec lowest = splat(-87.3f);
  const Vec clamped = minimum(maximum(x, lowest), splat(88.3f));
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa.
  const Vec magic = splat(12582912.0f);
  const Vec shifted = madd(clamped, splat(1.44269504088896341f), magic);
  const Vec n = shifted - magic;
  Vec r = madd(n, splat(-0.693359375f), clamped);
  r = madd(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = madd(p, r, splat(1.3981999507e-3f));
  p = madd(p, r, splat(8.3334519073e-3f));
  p = madd(p, r, splat(4.1665795894e-2f));
  p = madd(p, r, splat(1.6666665459e-1f));
  p = madd(p, r, splat(5.0000001201e-1f));
  p = madd(p, r * r, r) + splat(1.0f);
  const IntVec exponent = reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(magic) + 127;
  const Vec power = reinterpret_cast<Vec>(exponent << 23);
  return x < lowest ? splat(0.0f) : p * power;
}

SHARDWRIGHT_INLINE Vec sigmoid(Vec x) {
  return splat(1.0f) / (splat(1.0f) + exponential(-x));
}

/// The C library's erf, lane by lane: only the exact GELU needs it.
SHARDWRIGHT_INLINE Vec error_function(Vec x) {
  for (int lane = 0; lane < kWidth; ++lane) x[lane] = ::erff(x[lane]);
  return x;
}

/// Likewise; only capped logits need it.
SHARDWRIGHT_INLINE Vec hyperbolic_tangent(Vec x) {
  for (int lane = 0; lane < kWidth; ++lane) x[lane] = ::tanhf(x[lane]);
  return x;
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
