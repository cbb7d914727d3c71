// SPDX-License-Identifier: Apache-2.0
// Flat arrays: sums, conversions, random numbers, AdamW and sums of squares.
#include <cstring>

#include "kernels/fp8.h"
#include "kernels/host/simd/kernels.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(out + i, load(a + i, lanes) + load(b + i, lanes), lanes);
  });
}

template <class T>
void accumulate(const T* in, float* total, std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    store(total + i, load(total + i, lanes) + load(in + i, lanes), lanes);
  });
}

template <Fp8Format kFormat>
void encode(const float* in, float scale, std::uint8_t* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kernels::to_fp8<kFormat>(in[i] * scale);
}

template <Fp8Format kFormat>
void decode(const std::uint8_t* in, float scale, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kernels::fp8_to_float<kFormat>(in[i]) * scale;
}

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

void adamw(const AdamWNumbers& a, const float* gradient, float* parameter, float* m, float* v,
           std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    const Vec g = load(gradient + i, lanes) * splat(a.grad_scale);
    const Vec first = madd(load(m + i, lanes), splat(a.beta1), g * splat(a.beta1_rest));
    const Vec second = madd(load(v + i, lanes), splat(a.beta2), g * g * splat(a.beta2_rest));
    const Vec kept = load(parameter + i, lanes) * splat(a.keep);
    const Vec denominator = madd(square_root(second), splat(a.root_correction), splat(a.eps));
    store(m + i, first, lanes);
    store(v + i, second, lanes);
    store(parameter + i, kept - splat(a.step_size) * first / denominator, lanes);
  });
}

// Random numbers: kernels/random.h's sequence with vectors: sixteen counters side by side, 32-bit
// numbers in 64-bit lanes so that a product fits into its lane.

constexpr std::ptrdiff_t kPairs = kWidth / 2;
constexpr std::ptrdiff_t kParts = 16 / kPairs;
typedef std::uint64_t LongVec __attribute__((vector_size(8 * kPairs)));
typedef std::uint32_t ShortVec __attribute__((vector_size(4 * kPairs)));

/// The product of the low halves of the lanes.
SHARDWRIGHT_INLINE LongVec multiply(LongVec a, LongVec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<LongVec>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<LongVec>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<LongVec>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return a * b;
#endif
}

SHARDWRIGHT_INLINE LongVec every_lane(std::uint64_t value) {
  return LongVec{} + value;
}

/// The words of indices 64 * group to 64 * group + 63.
SHARDWRIGHT_INLINE void fill_group(const RandomStream& stream, std::uint64_t group,
                                   std::uint32_t* out) {
  for (int part = 0; part < kParts; ++part) {
    LongVec block;
    for (int lane = 0; lane < kPairs; ++lane) {
      block[lane] = 16 * group + static_cast<std::uint64_t>(part * kPairs + lane);
    }
    LongVec c0 = block & 0xffffffffu;
    LongVec c1 = block >> 32;
    LongVec c2 = every_lane(stream.step);
    LongVec c3 = every_lane(static_cast<std::uint32_t>(stream.site));
    std::uint32_t k0 = static_cast<std::uint32_t>(stream.seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const LongVec a = multiply(c0, every_lane(0xD2511F53u));
      const LongVec b = multiply(c2, every_lane(0xCD9E8D57u));
      c0 = (b >> 32) ^ c1 ^ every_lane(k0);
      c1 = b & 0xffffffffu;
      c2 = (a >> 32) ^ c3 ^ every_lane(k1);
      c3 = a & 0xffffffffu;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const LongVec words[4] = {c0, c1, c2, c3};
    for (int word = 0; word < 4; ++word) {
      const ShortVec narrow = __builtin_convertvector(words[word], ShortVec);
      std::memcpy(out + part * kPairs + 16 * std::ptrdiff_t{word}, &narrow, sizeof narrow);
    }
  }
}

void random_words(const RandomStream& stream, std::uint64_t first, std::uint64_t count,
                  std::uint32_t* out) {
  std::uint32_t cut[64];
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t index = first + done;
    const std::uint64_t skip = index % 64;
    const std::uint64_t fit = 64 - skip < count - done ? 64 - skip : count - done;
    if (fit == 64) {
      fill_group(stream, index / 64, out + done);
    } else {
      fill_group(stream, index / 64, cut);
      std::memcpy(out + done, cut + skip, fit * sizeof(std::uint32_t));
    }
    done += fit;
  }
}

void narrow_stochastic(const float* in, const std::uint32_t* random, int shift, BFloat16* out,
                       std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    const Vec value = load(in + i, lanes);
    const WordVec noise =
        (reinterpret_cast<WordVec>(load(reinterpret_cast<const float*>(random) + i, lanes)) >>
         shift) &
        0xffffu;
    const WordVec bits = reinterpret_cast<WordVec>(value);
    const WordVec moved = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + noise) & 0xffff0000u;
    store(out + i, reinterpret_cast<Vec>(moved), lanes);
  });
}

// Sums of squares without rounding, a block at a time.
//
// The square of a float is exact in double. With 2^t above all squares of the block, a square is
// cut into a multiple of 2^(t-40), one of 2^(t-80), one of 2^(t-120) and a rest; 1024 multiples of
// one kind that are below 2^40 units add up within the 53 bits of a double, so nothing is ever
// rounded. Adding and taking away 1.5 * 2^(q+52) leaves the nearest multiple of 2^q. The rest is
// zero unless some number is some 2^40 times smaller than the largest.

constexpr int kLanes = kWidth / 2;
typedef float FloatVec __attribute__((vector_size(4 * kLanes)));
typedef double DoubleVec __attribute__((vector_size(8 * kLanes)));

SHARDWRIGHT_INLINE DoubleVec splat_double(double x) {
  DoubleVec v;
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = x;
  return v;
}

SHARDWRIGHT_INLINE double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent + 1023) << 52);
}

struct Cutter {
  DoubleVec magic[3];
  DoubleVec sums[3];
  DoubleVec rest;

  SHARDWRIGHT_INLINE void add(FloatVec x) {
    const DoubleVec wide = __builtin_convertvector(x, DoubleVec);
    DoubleVec left = wide * wide;
#pragma GCC unroll 3
    for (int level = 0; level < 3; ++level) {
      const DoubleVec part = (left + magic[level]) - magic[level];
      sums[level] += part;
      left -= part;
    }
    rest += left * left;
  }
};

BlockSquares block_squares(const float* x, std::int64_t n) {
  std::uint32_t top_bits = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffffu;
    top_bits = top_bits < bits ? bits : top_bits;
  }
  BlockSquares result{{0.0, 0.0, 0.0}, true};
  if (top_bits == 0) return result;
  const int biased = static_cast<int>(top_bits >> 23);
  if (biased == 255) return {{0.0, 0.0, 0.0}, false};
  // Every |x| is below 2^(biased - 126), subnormals included.
  const int top = 2 * (biased - 126);
  Cutter cutter;
  for (int level = 0; level < 3; ++level) {
    cutter.magic[level] = splat_double(1.5 * power_of_two(top - 40 * (level + 1) + 52));
    cutter.sums[level] = splat_double(0.0);
  }
  cutter.rest = splat_double(0.0);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    FloatVec v;
    std::memcpy(&v, x + i, sizeof v);
    cutter.add(v);
  }
  if (i < n) {
    FloatVec v = {};
    std::memcpy(&v, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
    cutter.add(v);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int level = 0; level < 3; ++level) result.sums[level] += cutter.sums[level][lane];
    if (cutter.rest[lane] != 0.0) result.exact = false;
  }
  return result;
}

template <class T>
void add_elementwise_of(TypedKernels<T>& kernels) {
  kernels.widen = &convert<T, float>;
  kernels.narrow = &convert<float, T>;
  kernels.add = &add<T>;
  kernels.accumulate = &accumulate<T>;
}

}  // namespace

void add_elementwise(Kernels& kernels) {
  add_elementwise_of(kernels.fp32);
  add_elementwise_of(kernels.bf16);
  kernels.largest_magnitude = &largest_magnitude;
  kernels.to_fp8 = &to_fp8;
  kernels.from_fp8 = &from_fp8;
  kernels.adamw = &adamw;
  kernels.random_words = &random_words;
  kernels.narrow_stochastic = &narrow_stochastic;
  kernels.block_squares = &block_squares;
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
