// SPDX-License-Identifier: Apache-2.0
// kernels/random.h's sequence with vectors: sixteen counters side by side, 32-bit numbers in 64-bit
// lanes so that a product fits into its lane.
#include <cstring>

#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

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

}  // namespace

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

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
