// SPDX-License-Identifier: Apache-2.0
// Sums of squares without rounding, a block at a time.
//
// The square of a float is exact in double. With 2^t above all squares of the block, a square is
// cut into a multiple of 2^(t-40), one of 2^(t-80), one of 2^(t-120) and a rest; 1024 multiples of
// one kind that are below 2^40 units add up within the 53 bits of a double, so nothing is ever
// rounded. Adding and taking away 1.5 * 2^(q+52) leaves the nearest multiple of 2^q. The rest is
// zero unless some number is some 2^40 times smaller than the largest.

#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

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

}  // namespace

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

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
