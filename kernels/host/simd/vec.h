// SPDX-License-Identifier: Apache-2.0
// One vector register of floats, how rows of any length are walked with it, and exponentials on it.
//
// This header belongs to the files that are compiled once per instruction set; everything in it
// lives in a namespace named after the set, so that code with AVX-512 can never be linked into the
// path of a processor without it. Sums run over 32 interleaved partial sums whatever the width of a
// register, and contraction to fused multiply-adds happens only where madd() says so; so the
// results do not depend on the width, nor on where in an array an element stands.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/simd/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SHARDWRIGHT_INLINE [[gnu::always_inline]] inline

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

#if defined(__AVX512F__)
inline constexpr std::ptrdiff_t kWidth = 16;
#elif defined(__AVX2__)
inline constexpr std::ptrdiff_t kWidth = 8;
#else
inline constexpr std::ptrdiff_t kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t IntVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint32_t WordVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint16_t HalfVec __attribute__((vector_size(2 * kWidth)));

/// How many lanes of a register are in use: all, or the first `count`.
struct All {};
struct First {
  int count;
};

SHARDWRIGHT_INLINE Vec splat(float x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_set1_ps(x));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_set1_ps(x));
#else
  return Vec{x, x, x, x};
#endif
}

/// a * b + c, rounded once where the processor can.
SHARDWRIGHT_INLINE Vec madd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  return a * b + c;
#endif
}

SHARDWRIGHT_INLINE Vec square_root(Vec a) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_sqrt_ps(reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(a)));
#else
  for (int lane = 0; lane < kWidth; ++lane) a[lane] = __builtin_sqrtf(a[lane]);
  return a;
#endif
}

/// A NaN in `a` stays, as in a comparison that is false.
SHARDWRIGHT_INLINE Vec maximum(Vec a, Vec b) {
  return a < b ? b : a;
}
SHARDWRIGHT_INLINE Vec minimum(Vec a, Vec b) {
  return a > b ? b : a;
}

SHARDWRIGHT_INLINE Vec load(const float* p, All) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
SHARDWRIGHT_INLINE Vec load(const BFloat16* p, All) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  return reinterpret_cast<Vec>(__builtin_convertvector(half, WordVec) << 16);
}
/// Unused lanes are zero.
template <class T>
SHARDWRIGHT_INLINE Vec load(const T* p, First lanes) {
  T padded[kWidth] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(lanes.count) * sizeof(T));
  return load(padded, All{});
}

SHARDWRIGHT_INLINE void store(float* p, Vec v, All) {
  std::memcpy(p, &v, sizeof v);
}
SHARDWRIGHT_INLINE void store(BFloat16* p, Vec v, All) {
  const WordVec bits = reinterpret_cast<WordVec>(v);
  const WordVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // NOLINTNEXTLINE(misc-redundant-expression): false where it is no number
  const HalfVec half = __builtin_convertvector(v == v ? rounded : (bits >> 16) | 0x40u, HalfVec);
  std::memcpy(p, &half, sizeof half);
}
template <class T>
SHARDWRIGHT_INLINE void store(T* p, Vec v, First lanes) {
  T padded[kWidth];
  store(padded, v, All{});
  std::memcpy(p, padded, static_cast<std::size_t>(lanes.count) * sizeof(T));
}

/// Calls body(i, lanes) along [0, n): whole registers, then the rest.
template <class Body>
SHARDWRIGHT_INLINE void for_vectors(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, All{});
  if (i < n) body(i, First{static_cast<int>(n - i)});
}

/// Joins lanes l and l + width/2, then l and l + width/4, and so on, as a binary tree.
template <class Join>
SHARDWRIGHT_INLINE float join_lanes(Vec v, Join join) {
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) {
#if defined(__clang__)
    Vec turned;
    for (int lane = 0; lane < kWidth; ++lane) turned[lane] = v[(lane + half) % kWidth];
    v = join(v, turned);
#else
    IntVec rotated;
#pragma GCC unroll 16
    for (int lane = 0; lane < kWidth; ++lane)
      rotated[lane] = static_cast<int>((lane + half) % kWidth);
    v = join(v, __builtin_shuffle(v, rotated));
#endif
  }
  return v[0];
}

/// Folds [0, n) into 32 interleaved partial results, element i into i % 32, all starting at
/// `initial`, by partial = step(partial, i, lanes), and joins them as a binary tree: l and l + 16,
/// then l and l + 8, and so on.
template <class Step, class Join>
SHARDWRIGHT_INLINE float fold(std::int64_t n, float initial, Step step, Join join) {
  constexpr int kInterleave = 32;
  constexpr std::ptrdiff_t kParts = kInterleave / kWidth;
  Vec part[kParts];
#pragma GCC unroll 8
  for (int p = 0; p < kParts; ++p) part[p] = splat(initial);
  std::int64_t i = 0;
  for (; i + kInterleave <= n; i += kInterleave) {
#pragma GCC unroll 8
    for (std::ptrdiff_t p = 0; p < kParts; ++p) part[p] = step(part[p], i + p * kWidth, All{});
  }
#pragma GCC unroll 8
  for (int p = 0; p < kParts; ++p, i += kWidth) {
    if (i + kWidth <= n) {
      part[p] = step(part[p], i, All{});
    } else if (i < n) {
      part[p] = step(part[p], i, First{static_cast<int>(n - i)});
    }
  }
#pragma GCC unroll 4
  for (int half = kParts / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int p = 0; p < half; ++p) part[p] = join(part[p], part[p + half]);
  }
  return join_lanes(part[0], join);
}

/// Sum over [0, n): step(partial, i, lanes) adds elements i... to `partial` and must add nothing in
/// lanes that are not in use.
template <class Step>
SHARDWRIGHT_INLINE float sum(std::int64_t n, Step step) {
  return fold(n, 0.0f, step, [](Vec a, Vec b) { return a + b; });
}

/// The largest of x[0, n), n > 0; NaNs may be passed over.
SHARDWRIGHT_INLINE float largest(const float* x, std::int64_t n) {
  const auto step = [&](Vec partial, std::int64_t i, auto lanes) {
    if constexpr (std::is_same_v<decltype(lanes), First>) {
      float padded[kWidth];
      for (int lane = 0; lane < kWidth; ++lane) {
        padded[lane] = x[i + (lane < lanes.count ? lane : 0)];
      }
      return maximum(load(padded, All{}), partial);
    } else {
      return maximum(load(x + i, lanes), partial);
    }
  };
  return fold(n, -__builtin_inff(), step, [](Vec a, Vec b) { return maximum(a, b); });
}

template <class From, class To>
void convert(const From* in, To* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
}

/// Where a row starts; here and not in Rows, so that each instruction set has its own copy.
[[gnu::always_inline]] inline std::int64_t row_offset(const Rows& rows, std::int64_t row) {
  if (rows.heads == 1) return row * rows.stride;
  return row / rows.heads * rows.stride + row % rows.heads * rows.cols;
}

// Exponentials on a vector register, for softmax and activations.
//
// exp follows Cephes' expf (S. Moshier): x = n ln 2 + r, a polynomial in r, and 2^n put together
// from its bits; within 2 units in the last place of the exact value (tested).

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

/// simd/gemm.cc; kernels.h tells the meaning.
void gemm(Layout, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
          std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
          std::int64_t c_stride, bool add);

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
