// SPDX-License-Identifier: Apache-2.0
// Reading and writing several neighbouring numbers at once, as floats. For .cu files only.
//
// Kernels work on chunks of kWidth elements: 16 bytes of the narrowest type among their arrays.
// Where an address or a row's length does not allow it, the same kernel runs with width 1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {

/// Elements of a chunk of arrays of these types.
template <class... T>
inline constexpr int kWidth = (std::is_same_v<T, float> && ...) ? 4 : 8;

/// Bytes that an access of N elements must be aligned to.
template <int N, class T>
inline constexpr std::size_t kAlignment = N * sizeof(T) < 16 ? N * sizeof(T) : 16;

/// Whether chunks of N elements can be read and written at these addresses.
template <int N, class... T>
bool aligned(const T*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % kAlignment<N, T> == 0) && ...);
}

/// Calls body(width) with N as an integral constant where that is allowed, else 1.
template <int N, class Body>
void with_width(bool allowed, Body&& body) {
  if (allowed) {
    body(std::integral_constant<int, N>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

/// One access of Word, at an address that is a multiple of its size.
template <class Word>
__device__ __forceinline__ Word load_word(const void* p) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(Word) != 0) {
    cuda_on_cpu::fail("a misaligned read of " + std::to_string(sizeof(Word)) + " bytes");
  }
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
#else
  return *static_cast<const Word*>(p);
#endif
}
/// The same for writing, to global memory. Said in PTX, because the compiler takes words that are
/// put together in registers apart again and writes them in four pieces.
template <class Word>
__device__ __forceinline__ void store_word(void* p, const Word& word) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(Word) != 0) {
    cuda_on_cpu::fail("a misaligned write of " + std::to_string(sizeof(Word)) + " bytes");
  }
  std::memcpy(p, &word, sizeof word);
#else
  if constexpr (sizeof(Word) == 16) {
    const auto& v = reinterpret_cast<const uint4&>(word);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  } else if constexpr (sizeof(Word) == 8) {
    const auto& v = reinterpret_cast<const uint2&>(word);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y)
                 : "memory");
  } else {
    *static_cast<Word*>(p) = word;
  }
#endif
}

/// Widens the halves of a word.
__device__ __forceinline__ float low_half(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_half(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}

/// Rounds to nearest even; NaNs become NaNs.
template <class T>
__device__ __forceinline__ T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  }
}

__device__ __forceinline__ std::uint32_t rounded_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16 |
         __bfloat16_as_ushort(pair.x);
}

/// e^x and 1 / x, exact enough for a result that is rounded to T: for bf16 the device's
/// approximations, whose relative error grows to some 1e-6 where e^x has vanished beside 1.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}
template <class T>
__device__ __forceinline__ float reciprocal(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / x;
  } else {
    return __fdividef(1.0f, x);
  }
}

/// The numbers of 16 bytes as they lie in memory.
template <class T>
__device__ __forceinline__ void unpack(const uint4& word, float (&v)[kWidth<T>]) {
  if constexpr (std::is_same_v<T, float>) {
    v[0] = __uint_as_float(word.x);
    v[1] = __uint_as_float(word.y);
    v[2] = __uint_as_float(word.z);
    v[3] = __uint_as_float(word.w);
  } else {
    v[0] = low_half(word.x);
    v[1] = high_half(word.x);
    v[2] = low_half(word.y);
    v[3] = high_half(word.y);
    v[4] = low_half(word.z);
    v[5] = high_half(word.z);
    v[6] = low_half(word.w);
    v[7] = high_half(word.w);
  }
}

template <int N>
__device__ __forceinline__ void load(const float* p, float (&v)[N]) {
  static_assert(N == 1 || N % 4 == 0);
  if constexpr (N == 1) {
    v[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 part = load_word<float4>(p + i);
      v[i] = part.x;
      v[i + 1] = part.y;
      v[i + 2] = part.z;
      v[i + 3] = part.w;
    }
  }
}

template <int N>
__device__ __forceinline__ void load(const BFloat16* p, float (&v)[N]) {
  static_assert(N == 1 || N == 4 || N == 8);
  if constexpr (N == 1) {
    v[0] = __uint_as_float(static_cast<std::uint32_t>(p->bits) << 16);
  } else if constexpr (N == 4) {
    const uint2 part = load_word<uint2>(p);
    v[0] = low_half(part.x);
    v[1] = high_half(part.x);
    v[2] = low_half(part.y);
    v[3] = high_half(part.y);
  } else {
    unpack<BFloat16>(load_word<uint4>(p), v);
  }
}

template <int N>
__device__ __forceinline__ void store(float* p, const float (&v)[N]) {
  if constexpr (N == 1) {
    *p = v[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      store_word(p + i, make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
    }
  }
}

template <int N>
__device__ __forceinline__ void store(BFloat16* p, const float (&v)[N]) {
  if constexpr (N == 1) {
    *p = rounded<BFloat16>(v[0]);
  } else if constexpr (N == 4) {
    store_word(p, make_uint2(rounded_pair(v[0], v[1]), rounded_pair(v[2], v[3])));
  } else {
    store_word(p, make_uint4(rounded_pair(v[0], v[1]), rounded_pair(v[2], v[3]),
                             rounded_pair(v[4], v[5]), rounded_pair(v[6], v[7])));
  }
}

}  // namespace shardwright::kernels::cuda
