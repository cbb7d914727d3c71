// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a warp or block in a fixed order. For .cu files only.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

namespace shardwright::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// The value of the lane whose number differs in the bits of `distance`; T is a number or a struct
/// of 32-bit words.
template <class T>
__device__ __forceinline__ T shuffle_xor(const T& value, int distance) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(kAllLanes, value, distance);
  } else {
    constexpr int kWords = sizeof(T) / 4;
    unsigned words[kWords];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(kAllLanes, words[i], distance);
    T result;
    memcpy(&result, words, sizeof(T));
    return result;
  }
}

/// Joins the values of each group of kLanes neighbouring lanes (a power of two up to 32) as a
/// binary tree; every lane gets the result. All 32 lanes take part.
template <int kLanes, class T, class Join>
__device__ __forceinline__ T warp_reduce(T value, Join join) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = join(value, shuffle_xor(value, distance));
  }
  return value;
}

/// Joins the values of all `kThreadsOfBlock` threads of a one-dimensional (or flattened) block;
/// every thread gets the result. `shared` holds a value a warp and may be used again at once.
template <int kThreadsOfBlock, class T, class Join>
__device__ __forceinline__ T block_reduce(T value, int thread, T* shared, Join join) {
  constexpr int kWarps = kThreadsOfBlock / 32;
  value = warp_reduce<32>(value, join);
  if (thread % 32 == 0) shared[thread / 32] = value;
  __syncthreads();
  T result = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) result = join(result, shared[warp]);
  __syncthreads();
  return result;
}

}  // namespace shardwright::kernels::cuda
