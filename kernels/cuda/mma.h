// SPDX-License-Identifier: Apache-2.0
// Tensor-core and asynchronous-copy instructions of sm_80 and later, each as one function with its
// layout of fragments, and the tiles that flash attention feeds them with. For .cu files only. (PTX
// ISA, "Warp-level matrix instructions" and "Data movement: asynchronous copy".)
//
// With lane l of a warp, g = l / 4 and t = l % 4, and the low half of a register holding the
// element with the lower index:
//
//   A [16 x 16], 4 registers   a[0] = A[g    ][2t, 2t + 1]    a[2] = A[g    ][2t + 8, 2t + 9]
//                              a[1] = A[g + 8][2t, 2t + 1]    a[3] = A[g + 8][2t + 8, 2t + 9]
//   B [16 x 8],  2 registers   b[0] = B[2t, 2t + 1][g]        b[1] = B[2t + 8, 2t + 9][g]
//   C [16 x 8],  4 floats      c[0], c[1] = C[g][2t, 2t + 1]  c[2], c[3] = C[g + 8][2t, 2t + 1]
//
// Two neighbouring C tiles [16 x 16], packed to bf16, are an A fragment: a = {pack(c[0], c[1]),
// pack(c[2], c[3]), pack(next[0], next[1]), pack(next[2], next[3])}.
//
// An 8 x 8 matrix M of bf16 gives lane l the elements M[g][2t, 2t + 1] in one register, and
// transposed M[2t, 2t + 1][g]. So, with rows of 16 bytes anywhere in shared memory:
//   A (row-major)           ldmatrix_x4: matrices rows 0-7, rows 8-15, then both again 8 columns on
//   B from B^T (n-major)    ldmatrix_x4: 8 rows n, columns k 0-7 and 8-15, then the next 8 rows
//   B (row-major, k-major)  ldmatrix_x4_transposed: as A, of rows k, and the next 8 columns n
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace shardwright::kernels::cuda {

/// Two floats rounded to nearest bf16, `low` in the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// C += A B with fp32 sums. All 32 lanes take part.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[2]) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::mma_16x8x16(c, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#ifndef SHARDWRIGHT_CUDA_ON_CPU
__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

/// The same pointer into shared memory, in a register of its own: the compiler cannot take it apart
/// into the sum it was, whose parts would each take a register in a loop.
template <class T>
__device__ __forceinline__ T* in_one_register(T* shared) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  return shared;
#else
  std::uint32_t address = shared_address(shared);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
#endif
}

/// Four 8 x 8 matrices into one register each. Lane l points at row l % 8 of matrix l / 8: 16 bytes
/// of shared memory, aligned to 16. All 32 lanes take part.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 4, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// As ldmatrix_x4, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::ldmatrix(r, row, 4, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

/// Begins to copy 4 or 16 bytes from global to shared memory (16 of them past the L1 cache), or to
/// write zeros when `valid` is false; then `global` may be any address. Both addresses are
/// multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 16);
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_copy(shared, valid ? global : nullptr, kBytes);
#else
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  }
#endif
}

/// Ends a group of copies of this thread; it may be empty.
__device__ __forceinline__ void cp_async_commit() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most the `kLeft` latest groups of this thread are still under way. Other threads
/// see the data after a __syncthreads that follows.
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::async_wait(kLeft);
#else
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
#endif
}

/// __syncthreads for warps that meet from different places of the code, as often as each other: the
/// hardware counts arrivals, but __syncthreads promises nothing when warps take different branches.
__device__ __forceinline__ void block_barrier() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  __syncthreads();
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// Tiles of attention in shared memory and in the registers of a warp.
//
// A tile holds rows of D bf16 numbers in chunks of 16 bytes, and one chunk more that nobody uses:
// the 8 rows of an ldmatrix, one chunk of each, are then in 8 different groups of banks, and so are
// the rows that a warp writes when it stages results. All chunks of a tile that a lane reads lie
// constants apart, so that one register holds the address of them all.
//
// Each warp owns whole rows of a product's result, in the C layout. A result
// that is an operand of the next product becomes an A fragment without leaving the registers:
// scores for the output, transposed scores for the gradients of keys and values.
//
// Scores are exponentiated with base 2; log2(e) is part of their scale.

inline constexpr int kWarpLanes = 32;
inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = kWarpLanes * kFlashWarps;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) / kWarpLanes;
}
__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarpLanes;
}
__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000u));
}

/// 2^x, in one instruction on the device.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// From row to row of a tile.
template <int kD>
inline constexpr int kPitch = kD + 8;

/// Where a chunk of 8 numbers lies in a tile.
template <int kD>
__device__ __forceinline__ int chunk_at(int row, int chunk) {
  return row * kPitch<kD> + chunk * 8;
}

/// How kThreads threads of a block copy tiles: each the same chunk of every kPass-th row.
template <int kD, int kRows, int kThreads>
struct TileCopy {
  static constexpr int kChunks = kD / 8, kPass = kThreads / kChunks;
  static_assert(kRows % kPass == 0);

  __device__ __forceinline__ static int row(int thread) { return thread / kChunks; }
  /// Of a thread's first chunk, in the tile and in rows that lie `stride` apart.
  __device__ __forceinline__ static int place(int thread) {
    return chunk_at<kD>(row(thread), thread % kChunks);
  }
  __device__ __forceinline__ static std::int64_t source(int thread, int first, int stride) {
    return std::int64_t{first + row(thread)} * stride + thread % kChunks * 8;
  }

  /// Begins to copy from there to there. The array ends `rows_left` rows behind this thread's
  /// first; rows from there on become zeros.
  __device__ __forceinline__ static void begin(Bf16* to, const Bf16* from, int stride,
                                               int rows_left) {
#pragma unroll
    for (int i = 0; i < kRows / kPass; ++i) {
      cp_async<16>(to + i * kPass * kPitch<kD>, from, i * kPass < rows_left);
      from += std::int64_t{kPass} * stride;
    }
  }
};

/// Begins to copy rows [first, first + kRows) of an array into a tile; those from `end` on become
/// zeros. All kThreads threads of the block take part.
template <int kD, int kRows, int kThreads = kFlashThreads>
__device__ __forceinline__ void load_tile(Bf16* tile, const Bf16* array, int stride, int first,
                                          int end) {
  using Copy = TileCopy<kD, kRows, kThreads>;
  const int thread = static_cast<int>(threadIdx.x);
  Copy::begin(tile + Copy::place(thread), array + Copy::source(thread, first, stride), stride,
              end - first - Copy::row(thread));
}

struct FragmentA {
  std::uint32_t r[4];
};
/// The operands of two neighbouring result tiles.
struct FragmentB {
  std::uint32_t r[2][2];
};

/// Where in a tile this lane's row of an ldmatrix lies, of A and of B: 8 rows down, then 8 columns
/// on.
template <int kD>
__device__ __forceinline__ int lane_of_rows() {
  const int matrix = lane_index() / 8;
  return chunk_at<kD>(matrix % 2 * 8 + lane_index() % 8, matrix / 2);
}
/// The same of the transpose of B: 8 columns on, then 8 rows down.
template <int kD>
__device__ __forceinline__ int lane_of_columns() {
  const int matrix = lane_index() / 8;
  return chunk_at<kD>(matrix / 2 * 8 + lane_index() % 8, matrix % 2);
}

/// A = rows [row, row + 16) and columns [16 k, 16 k + 16) of a tile. `lane` lies lane_of_rows
/// behind its beginning: with constant rows and columns one register serves for all of a tile.
template <int kD>
__device__ __forceinline__ FragmentA load_a(const Bf16* lane, int row, int k) {
  FragmentA a;
  ldmatrix_x4(a.r, lane + chunk_at<kD>(row, 2 * k));
  return a;
}

__device__ __forceinline__ FragmentB as_b(const std::uint32_t (&r)[4]) {
  return {{{r[0], r[1]}, {r[2], r[3]}}};
}

/// B = the transpose of these rows and columns: result columns are rows of the tile. `lane` lies
/// lane_of_columns behind its beginning.
template <int kD>
__device__ __forceinline__ FragmentB load_b_transposed(const Bf16* lane, int row, int k) {
  std::uint32_t registers[4];
  ldmatrix_x4(registers, lane + chunk_at<kD>(row, 2 * k));
  return as_b(registers);
}

/// B = rows [row, row + 16) and columns [16 col, 16 col + 16) as they are; `lane` as of A.
template <int kD>
__device__ __forceinline__ FragmentB load_b(const Bf16* lane, int row, int col) {
  std::uint32_t registers[4];
  ldmatrix_x4_transposed(registers, lane + chunk_at<kD>(row, 2 * col));
  return as_b(registers);
}

/// Two neighbouring result tiles as an A fragment.
__device__ __forceinline__ FragmentA to_a(const float (&left)[4], const float (&right)[4]) {
  return {{pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]), pack_bf16(right[0], right[1]),
           pack_bf16(right[2], right[3])}};
}

/// Writes result[16 x 8 kTiles] times `factor[0]` (rows g) and `factor[1]` (rows g + 8) to rows
/// [row, row + 16) of an array, columns from 8 `first_chunk` on, through the same part of a tile
/// that only this warp uses any more. Rows from `end` on are left out; `first` is the array row of
/// the tile's row 0.
template <int kD, int kTiles>
__device__ __forceinline__ void store_rows(const float (&result)[kTiles][4],
                                           const float (&factor)[2], Bf16* tile, int row,
                                           Bf16* array, std::int64_t stride, int first, int end,
                                           int lane, int first_chunk = 0) {
  const int g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t pair =
          pack_bf16(result[n][2 * half] * factor[half], result[n][2 * half + 1] * factor[half]);
      const int at = chunk_at<kD>(row + g + 8 * half, first_chunk + n) + 2 * t;
      *reinterpret_cast<std::uint32_t*>(tile + at) = pair;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * kTiles / kWarpLanes; ++i) {
    const int item = i * kWarpLanes + lane;
    const int r = row + item / kTiles, chunk = first_chunk + item % kTiles;
    if (first + r < end) {
      *reinterpret_cast<uint4*>(array + (first + r) * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + chunk_at<kD>(r, chunk));
    }
  }
}

/// The least x and the greatest y of the lanes of a warp.
__device__ __forceinline__ int2 warp_span(int2 span) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    span.x = min(span.x, __shfl_xor_sync(0xffffffffu, span.x, distance));
    span.y = max(span.y, __shfl_xor_sync(0xffffffffu, span.y, distance));
  }
  return span;
}

/// The least x and the greatest y of the threads of kWarps warps, all of which take part and get
/// it; `scratch` is shared and free again after the block's next barrier.
template <int kWarps>
__device__ __forceinline__ int2 block_span(int2 span, int2 (&scratch)[kWarps]) {
  span = warp_span(span);
  if (lane_index() == 0) scratch[warp_index()] = span;
  __syncthreads();
  span = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    span.x = min(span.x, scratch[i].x);
    span.y = max(span.y, scratch[i].y);
  }
  return span;
}

/// Of first_key over queries [first, min(first + kRows, end)); null means 0 everywhere.
template <int kRows, int kWarps>
__device__ __forceinline__ int2 first_key_span(const std::int32_t* first_key, int first, int end,
                                               int2 (&scratch)[kWarps]) {
  if (first_key == nullptr) return {0, 0};
  int2 span = {end, 0};
  for (int i = static_cast<int>(threadIdx.x); i < kRows && first + i < end;
       i += kWarps * kWarpLanes) {
    span.x = min(span.x, first_key[first + i]);
    span.y = max(span.y, first_key[first + i]);
  }
  return block_span(span, scratch);
}

}  // namespace shardwright::kernels::cuda
