// SPDX-License-Identifier: Apache-2.0
// Tiles of attention in shared memory and in the registers of a warp. For .cu files only.
//
// A tile holds rows of D bf16 numbers in chunks of 16 bytes, and one chunk more that nobody uses:
// the 8 rows of an ldmatrix, one chunk of each, are then in 8 different groups of banks, and so are
// the rows that a warp writes when it stages results. All chunks of a tile that a lane reads lie
// constants apart, so that one register holds the address of them all.
//
// Each warp owns whole rows of a product's result, in the C layout of kernels/cuda/mma.h. A result
// that is an operand of the next product becomes an A fragment without leaving the registers:
// scores for the output, transposed scores for the gradients of keys and values.
//
// Scores are exponentiated with base 2; log2(e) is part of their scale.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/mma.h"

namespace shardwright::kernels::cuda {

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
