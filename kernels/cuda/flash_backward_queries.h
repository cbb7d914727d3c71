// SPDX-License-Identifier: Apache-2.0
// Gradients of queries: a block owns 128 queries of a head and walks over their keys
// (kernels/cuda/flash_attention_backward.cu). For .cu files only.
#pragma once

#include "kernels/cuda/flash_backward.h"

namespace shardwright::kernels::cuda::flash_gradient {

/// Sets scores of queries [query0, query0 + 32) and keys [key0, key0 + 16) to minus infinity where
/// a query does not see a key. First keys are read again for each of the few tiles that need it.
__device__ __forceinline__ void mask_scores(float (&scores)[2][kStep / 16][4], int key0, int query0,
                                            const std::int32_t* first_key, int seq) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    int first[2] = {0, 0};
    if (first_key != nullptr) {
      first[0] = first_key[min(query0 + 16 * m + g, seq - 1)];
      first[1] = first_key[min(query0 + 16 * m + g + 8, seq - 1)];
    }
#pragma unroll
    for (int n = 0; n < kStep / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + 8 * n + 2 * t + i % 2, query = query0 + 16 * m + g + i / 2 * 8;
        const bool hidden = (key > query) | (key < first[i / 2]);
        scores[m][n][i] = hidden ? minus_infinity() : scores[m][n][i];
      }
    }
  }
}

/// The places of the q kernel's shared memory.
template <int kD>
struct QShared {
  static constexpr int kTile = kStep * kD;
  static constexpr int kExchanged = 2 * 2 * kWarpLanes;  // uint4 of a pair
  /// Steps along D of dO that do not fit into registers.
  static constexpr int kSpare = kD == 128 ? 2 : 0;
  static constexpr std::size_t kWalkBytes =
      (kRing + 2) * kTile * sizeof(Bf16) + 2 * kPairs * kExchanged * sizeof(uint4);
  static constexpr std::size_t kEndBytes = 2 * kRows * kD * sizeof(Bf16);
  static constexpr std::size_t kSpareAt = kWalkBytes > kEndBytes ? kWalkBytes : kEndBytes;
  static constexpr std::size_t kBytes =
      kSpareAt + kWarps * KeptRows<kD, kSpare>::kSpareSize * sizeof(uint4);

  Bf16* keys;             // [kRing][kTile]
  Bf16* values;           // [2][kTile]
  uint4* exchange;        // [2][kPairs][kExchanged]
  Bf16 *queries, *d_out;  // [kRows][kD], before and after the walk, in the same place
  uint4* spare;

  explicit __device__ QShared(Bf16* base)
      : keys(base),
        values(base + kRing * kTile),
        exchange(reinterpret_cast<uint4*>(base + (kRing + 2) * kTile)),
        queries(base),
        d_out(base + kRows * kD),
        spare(reinterpret_cast<uint4*>(base + kSpareAt / sizeof(Bf16))) {}
};

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 1) flash_backward_q_kernel(Backward p) {
  constexpr int kTile = kStep * kD, kHalf = kStep / 2;
  const QShared<kD> shared(dynamic_shared<Bf16>());
  __shared__ int2 scratch[kWarps];
  __shared__ float2 rows[kRows];  // logarithm of the sum, and delta

  const FlashShape& s = p.shape;
  const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head / (s.heads / s.kv_heads);
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  const Bf16* const packed = p.packed + token0 * s.packed_stride;
  const std::int32_t* const first_key = p.first_key == nullptr ? nullptr : p.first_key + token0;
  const int query_end = min(query0 + kRows, s.seq);
  const int2 span = block_span<kRows>(first_key, query0, query_end, scratch);
  const int last_tile = (query_end - 1) / kStep;

  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  const int pair = warp % kPairs, half = warp / kPairs;
  const int row0 = pair * kPairRows;

  const auto begin_load = [&](int tile, int stage, int value_stage) {
    load_tile<kD, kStep, kBlockThreads>(shared.keys + stage * kTile,
                                        packed + (s.heads + kv_head) * kD, s.packed_stride,
                                        tile * kStep, s.seq);
    load_tile<kD, kStep, kBlockThreads>(shared.values + value_stage * kTile,
                                        packed + (s.heads + s.kv_heads + kv_head) * kD,
                                        s.packed_stride, tile * kStep, s.seq);
    cp_async_commit();
  };
  load_tile<kD, kRows, kBlockThreads>(shared.queries, packed + head * kD, s.packed_stride, query0,
                                      s.seq);
  load_tile<kD, kRows, kBlockThreads>(shared.d_out, p.d_out + token0 * s.out_stride + head * kD,
                                      s.out_stride, query0, s.seq);
  cp_async_commit();

  const int g = lane_index() / 4;
  const float scale = s.scale * kLog2E;
  for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kBlockThreads) {
    const bool inside = query0 + row < s.seq;
    const std::int64_t at =
        (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq + query0 + row;
    rows[row] = inside ? make_float2(p.statistics[at] * kLog2E, p.workspace.delta[at])
                       : make_float2(-minus_infinity(), 0.0f);
  }
  cp_async_wait<0>();
  __syncthreads();
  const KeptRows<kD, 0> q(shared.queries, row0, nullptr, warp);
  const KeptRows<kD, QShared<kD>::kSpare> d_out(shared.d_out, row0, shared.spare, warp);
  float d_q[2][kD / 16][4];  // this warp's half of the columns
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d_q[m][n][i] = 0.0f;
    }
  }
  __syncthreads();  // The walk takes the place of queries and gradients.

  const int begin_tile = span.x / kStep;
  int stage = 0, parity = 0;
  begin_load(begin_tile, 0, 0);
  // One round more than tiles: dQ of a tile is added up in the round after its dS.
  for (int tile = begin_tile; tile <= last_tile + 1; ++tile) {
    const int next_stage = stage == kRing - 1 ? 0 : stage + 1;
    const int previous_stage = stage == 0 ? kRing - 1 : stage - 1;
    cp_async_wait<0>();
    __syncthreads();
    if (tile < last_tile) begin_load(tile + 1, next_stage, parity ^ 1);

    if (tile > begin_tile) {
      const Bf16* const k_tile = shared.keys + previous_stage * kTile;
      const uint4* const exchange =
          shared.exchange + ((parity ^ 1) * kPairs + pair) * QShared<kD>::kExchanged + lane_index();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        FragmentA left[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 r = exchange[(m * 2 + k) * kWarpLanes];
          left[m] = {{r.x, r.y, r.z, r.w}};
        }
#pragma unroll
        for (int n = 0; n < kD / 16; n += 2) {
          const FragmentB b = load_b<kD>(k_tile, 16 * k, n / 2 + half * (kD / 32));
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma_16x8x16(d_q[m][n], left[m].r, b.r[0]);
            mma_16x8x16(d_q[m][n + 1], left[m].r, b.r[1]);
          }
        }
      }
    }
    if (tile <= last_tile) {
      const int key0 = tile * kStep + half * kHalf;
      float scores[2][kHalf / 8][4], d_s[2][kHalf / 8][4];
      multiply_kept<kD>(scores, q, shared.keys + stage * kTile, half * kHalf);
      multiply_kept<kD>(d_s, d_out, shared.values + parity * kTile, half * kHalf);
      if (key0 + kHalf - 1 > query0 + row0 || key0 < span.y) {
        mask_scores(scores, key0, query0 + row0, first_key, s.seq);
      }
      uint4* const exchange = shared.exchange + (parity * kPairs + pair) * QShared<kD>::kExchanged +
                              half * kWarpLanes + lane_index();
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
          const float2 row = rows[row0 + 16 * m + g + 8 * down];
#pragma unroll
          for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
            for (int i = 2 * down; i < 2 * down + 2; ++i) {
              const float probability = fast_exp2(scores[m][n][i] * scale - row.x);
              d_s[m][n][i] = probability * (d_s[m][n][i] - row.y);
            }
          }
        }
        const FragmentA a = to_a(d_s[m][0], d_s[m][1]);
        exchange[m * 2 * kWarpLanes] = make_uint4(a.r[0], a.r[1], a.r[2], a.r[3]);
      }
    }
    stage = next_stage;
    parity ^= 1;
  }
  __syncthreads();  // The results take the place of the walk.
  const float factor[2] = {s.scale, s.scale};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    store_rows<kD>(d_q[m], factor, shared.queries, row0 + 16 * m,
                   p.d_packed + token0 * s.packed_stride + head * kD, s.packed_stride, query0,
                   s.seq, half * (kD / 16));
  }
}

}  // namespace shardwright::kernels::cuda::flash_gradient
