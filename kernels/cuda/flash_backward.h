// SPDX-License-Identifier: Apache-2.0
// What the kernels of flash attention's backward pass share. For .cu files only.
//
// Operands are read from shared memory for each product they enter, and a warp with 16 rows reads
// more than tensor cores can use. So pairs of warps own 32 rows and keep them in registers.
#pragma once

#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_tile.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda::flash_gradient {

inline constexpr int kPairs = 4;  // of warps
inline constexpr int kWarps = 2 * kPairs;
inline constexpr int kBlockThreads = kWarps * kWarpLanes;
inline constexpr int kPairRows = 32;
inline constexpr int kRows = kPairs * kPairRows;  // that a block owns: keys or queries
inline constexpr int kStep = 32;  // queries or keys that a block walks over at a time
inline constexpr int kRing = 3;   // tiles: one behind, the current one, the next one

struct Backward {
  FlashShape shape;
  const Bf16* packed;
  const std::int32_t* first_key;
  const Bf16* out;
  const float* statistics;
  const Bf16* d_out;
  Bf16* d_packed;
  FlashWorkspace workspace;
};

__host__ __device__ constexpr int span_count(int seq) {
  return (seq + kFlashSpanQueries - 1) / kFlashSpanQueries;
}

/// Which thread of which block this is, read where it is used: the compiler would keep what follows
/// from it in registers that loops need.
struct Again {
  int thread, rows, head, sequence;

  __device__ __forceinline__ Again() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
    thread = static_cast<int>(threadIdx.x);
    rows = static_cast<int>(blockIdx.x);
    head = static_cast<int>(blockIdx.y);
    sequence = static_cast<int>(blockIdx.z);
#else
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(rows));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(head));
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(sequence));
#endif
  }
  __device__ __forceinline__ int lane() const {
    return thread % kWarpLanes;
  }
  __device__ __forceinline__ int warp() const {
    return thread / kWarpLanes;
  }
};

/// Has the number be in a register from here on.
__device__ __forceinline__ void settle([[maybe_unused]] int& number) {
#ifndef SHARDWRIGHT_CUDA_ON_CPU
  asm volatile("" : "+r"(number));
#endif
}

/// 32 rows of a warp as A fragments: most steps along D in registers, the last kSpare ones in
/// shared memory, in the same layout.
template <int kD, int kSpare>
struct KeptRows {
  static constexpr int kSteps = kD / 16, kInRegisters = kSteps - kSpare;
  static constexpr int kSpareSize = 2 * kSpare * kWarpLanes;  // uint4 of a warp
  FragmentA registers[2][kInRegisters];
  uint4* spare;  // this lane's first

  /// From rows [row, row + 32) of a tile; `place` has kSpareSize for each warp.
  __device__ KeptRows(const Bf16* tile, int row, uint4* place, int warp)
      : spare(kSpare > 0 ? place + warp * kSpareSize + lane_index() : nullptr) {
    const Bf16* const lane = tile + chunk_at<kD>(row, 0) + lane_of_rows<kD>();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const FragmentA a = load_a<kD>(lane, 16 * m, k);
        if (k < kInRegisters) {
          registers[m][k] = a;
        } else {
          spare[(2 * (k - kInRegisters) + m) * kWarpLanes] =
              make_uint4(a.r[0], a.r[1], a.r[2], a.r[3]);
        }
      }
    }
  }
  __device__ FragmentA at(int m, int k) const {
    if (k < kInRegisters) return registers[m][k];
    const uint4 r = spare[(2 * (k - kInRegisters) + m) * kWarpLanes];
    return {{r.x, r.y, r.z, r.w}};
  }
};

/// result = kept rows times the transpose of rows [row, row + 16) of a tile; `lane` lies
/// lane_of_columns behind its beginning.
template <int kD, int kSpare>
__device__ __forceinline__ void multiply_kept(float (&result)[2][2][4],
                                              const KeptRows<kD, kSpare>& kept, const Bf16* lane,
                                              int row) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[m][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    const FragmentB b = load_b_transposed<kD>(lane, row, k);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const FragmentA a = kept.at(m, k);
      mma_16x8x16(result[m][0], a.r, b.r[0]);
      mma_16x8x16(result[m][1], a.r, b.r[1]);
    }
  }
}

}  // namespace shardwright::kernels::cuda::flash_gradient
