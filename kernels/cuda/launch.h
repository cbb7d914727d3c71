// SPDX-License-Identifier: Apache-2.0
// What kernels are written with: how they are launched, how they read and write several
// neighbouring numbers at once, as floats, how arrays and matrices are spread over blocks, and sums
// over the threads of a warp or block in a fixed order. For .cu files only.
//
// What plain CUDA writes as syntax that no C++ compiler reads has a function here: <<<>>> is
// launch(), extern __shared__ is dynamic_shared(). The same line serves a GPU and the emulation
// that tests run on the processor (tests/support/cuda_on_cpu).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/bf16.h"
#include "kernels/cuda/cuda_error.h"

namespace shardwright::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic ones
  std::source_location where = std::source_location::current();
};

/// Shared memory of a block beyond this many bytes must be asked for.
inline constexpr std::size_t kSharedBytesByDefault = 48 * 1024;

#ifdef SHARDWRIGHT_CUDA_ON_CPU

/// Enqueues the kernel; arguments are copied. Throws Error when CUDA refuses the launch.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  check_cuda(cuda_on_cpu::enqueue(
                 stream, {shape.where.function_name(), shape.grid, shape.block, shape.shared_bytes,
                          [kernel, values] { std::apply(kernel, values); },
                          reinterpret_cast<const void*>(kernel), cuda_on_cpu::bytes_of(values)}),
             "kernel launch", shape.where);
}

/// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(cuda_on_cpu::shared_memory());
}

#else

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kSharedBytesByDefault) {
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "cudaFuncSetAttribute", shape.where);
  }
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t status = std::apply(
      [&](auto&... value) {
        // One more, because a kernel may have no arguments.
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        return cudaLaunchKernel(function, shape.grid, shape.block, pointers, shape.shared_bytes,
                                stream);
      },
      values);
  check_cuda(status, "kernel launch", shape.where);
}

template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shardwright_dynamic_shared[];
  return reinterpret_cast<T*>(shardwright_dynamic_shared);
}

#endif

// Kernels work on chunks of kWidth elements: 16 bytes of the narrowest type among their arrays.
// Where an address or a row's length does not allow it, the same kernel runs with width 1.

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

inline constexpr int kThreads = 256;  // of a block, unless a kernel says otherwise
/// Many times what a GPU holds at once; more work than that, blocks loop over.
inline constexpr std::int64_t kMaxBlocks = 4096;

inline unsigned blocks_for(std::int64_t work, std::int64_t work_of_block) {
  const std::int64_t blocks = (work + work_of_block - 1) / work_of_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Flat arrays: `head` single elements, then chunks from an aligned address on, then single ones.

template <int N, class Operation>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(Operation operation, std::int64_t head, std::int64_t chunks,
                       std::int64_t count) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t chunk = thread; chunk < chunks; chunk += threads) {
    operation.template at<N>(head + chunk * N);
  }
  if constexpr (N > 1) {
    const std::int64_t tail = head + chunks * N;
    if (thread < head) operation.template at<1>(thread);
    if (thread < count - tail) operation.template at<1>(tail + thread);
  }
}

/// Elements before the first one from which on chunks of N can be accessed in all arrays; -1 when
/// there is none.
template <int N, class... T>
int aligned_from(const T*... arrays) {
  for (int head = 0; head < N; ++head) {
    if (aligned<N>((arrays + head)...)) return head;
  }
  return -1;
}

/// Runs operation.at<M>(i) for elements i to i + M - 1, M = N or 1, until `count` are done. `head`
/// is what aligned_from<N> says of the arrays.
template <int N, class Operation>
void launch_elementwise(cudaStream_t stream, const Operation& operation, int head,
                        std::int64_t count,
                        std::source_location where = std::source_location::current()) {
  if (count == 0) return;
  if (head < 0 || count < 2 * N) {
    launch(elementwise_kernel<1, Operation>, {blocks_for(count, kThreads), kThreads, 0, where},
           stream, operation, 0, count, count);
    return;
  }
  const std::int64_t chunks = (count - head) / N;
  launch(elementwise_kernel<N, Operation>, {blocks_for(chunks, kThreads), kThreads, 0, where},
         stream, operation, head, chunks, count);
}

// Matrices: a block has `lanes` threads along a row and 256 / lanes rows.

struct RowTiles {
  dim3 grid;   // rows, then columns
  dim3 block;  // columns, then rows
};

/// For rows of `chunks` pieces of work.
inline RowTiles row_tiles(std::int64_t rows, std::int64_t chunks) {
  unsigned lanes = 1;
  while (lanes < kThreads && lanes < chunks) lanes *= 2;
  const std::int64_t column_blocks = (chunks + 4 * lanes - 1) / (4 * lanes);
  return {dim3(blocks_for(rows, kThreads / lanes),
               static_cast<unsigned>(column_blocks < 64 ? column_blocks : 64)),
          dim3(lanes, kThreads / lanes)};
}

/// In a kernel launched with row_tiles: calls body(row, chunk) for this thread's share.
template <class Body>
__device__ __forceinline__ void for_row_chunks(std::int64_t rows, std::int64_t chunks, Body body) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t first_chunk = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (std::int64_t row = first_row; row < rows; row += std::int64_t{gridDim.x} * blockDim.y) {
#pragma unroll 1
    for (std::int64_t chunk = first_chunk; chunk < chunks;
         chunk += std::int64_t{gridDim.y} * blockDim.x) {
      body(row, chunk);
    }
  }
}

// Sums over threads.

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
