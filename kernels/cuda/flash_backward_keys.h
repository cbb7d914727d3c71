// SPDX-License-Identifier: Apache-2.0
// Gradients of keys and values: a block owns 128 keys of a key head and walks over the query heads
// of its group and their queries (kernels/cuda/flash_attention_backward.cu). For .cu files only.
#pragma once

#include "kernels/cuda/flash_backward.h"

namespace shardwright::kernels::cuda::flash_gradient {

/// Where a block that owns keys is on its walk: a query head of the group and a tile of queries.
struct Walk {
  int member;
  int tile;
  int newest;  // first key that a query of the tile has
};

/// The next tile, `walk.tile` included, that sees some key up to `last_key`; behind the last one
/// walk.member is `members`.
__device__ __forceinline__ Walk seeing(Walk walk, const int2* spans, int first_tile, int tiles,
                                       int members, int last_key) {
  for (;; ++walk.tile) {
    if (walk.tile >= tiles) {
      ++walk.member;
      walk.tile = first_tile;
    }
    if (spans == nullptr || walk.member >= members) return walk;
    static_assert(kStep == kFlashSpanQueries);
    const int2 span = spans[walk.tile];
    walk.newest = span.y;
    if (span.x <= last_key) return walk;
  }
}

/// Sets transposed scores of keys [key0, key0 + 32) and queries [query0, query0 + 16) to minus
/// infinity where a query does not see a key. `first` is the queries' first keys.
__device__ __forceinline__ void mask_transposed(float (&scores)[2][2][4], int key0, int query0,
                                                const int* first) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int column = 8 * n + 2 * t;
    const int2 from = *reinterpret_cast<const int2*>(first + column);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + 16 * m + g + i / 2 * 8;
        // Not ||: a branch an element would cost more than the products do.
        const bool hidden =
            (key > query0 + column + i % 2) | (key < (i % 2 == 0 ? from.x : from.y));
        scores[m][n][i] = hidden ? minus_infinity() : scores[m][n][i];
      }
    }
  }
}

/// The places of the kv kernel's shared memory.
template <int kD>
struct KvShared {
  static constexpr int kTile = kStep * kD;
  static constexpr int kExchanged = 2 * kStep / 8 * kWarpLanes;  // float4 of a pair
  static constexpr std::size_t kWalkBytes =
      2 * kRing * kTile * sizeof(Bf16) + 2 * kPairs * kExchanged * sizeof(float4);
  static constexpr std::size_t kEndBytes = 2 * kRows * kD * sizeof(Bf16);
  static constexpr std::size_t kBytes = kWalkBytes > kEndBytes ? kWalkBytes : kEndBytes;

  Bf16* q;              // [kRing][kTile]
  Bf16* d_out;          // the same
  float4* exchange;     // [2][kPairs][kExchanged]
  Bf16 *keys, *values;  // [kRows][kD], before and after the walk, in the same place

  explicit __device__ KvShared(Bf16* base)
      : q(base),
        d_out(base + kRing * kTile),
        exchange(reinterpret_cast<float4*>(base + 2 * kRing * kTile)),
        keys(base),
        values(base + kRows * kD) {}
};

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 1) flash_backward_kv_kernel(Backward p) {
  constexpr int kTile = kStep * kD;
  const KvShared<kD> shared(dynamic_shared<Bf16>());
  alignas(8) __shared__ float lse[kRing][kStep], delta[kRing][kStep];
  alignas(8) __shared__ int first[kRing][kStep];

  const FlashShape& s = p.shape;
  const int key0 = static_cast<int>(blockIdx.x) * kRows;
  const int kv_head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int group = s.heads / s.kv_heads;
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  const Bf16* const packed = p.packed + token0 * s.packed_stride;
  const int2* const spans =
      p.first_key == nullptr
          ? nullptr
          : p.workspace.spans + static_cast<std::int64_t>(sequence) * span_count(s.seq);
  const int first_tile = key0 / kStep, tiles = (s.seq + kStep - 1) / kStep;
  const int last_key = min(key0 + kRows, s.seq) - 1;

  // The same for all lanes of a warp, which the compiler cannot know of threadIdx.
  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  const bool sums_values = warp < kPairs;  // else keys
  const int row0 = warp % kPairs * kPairRows;

  // What thread i of the first kStep knows of query i of a tile; queries behind the end have a
  // probability of 0.
  struct Row {
    float lse, delta;
    int first;
  };
  const auto begin_load = [&](const Walk& walk, int stage) {
    const int head = kv_head * group + walk.member;
    load_tile<kD, kStep, kBlockThreads>(shared.q + stage * kTile, packed + head * kD,
                                        s.packed_stride, walk.tile * kStep, s.seq);
    load_tile<kD, kStep, kBlockThreads>(shared.d_out + stage * kTile,
                                        p.d_out + token0 * s.out_stride + head * kD, s.out_stride,
                                        walk.tile * kStep, s.seq);
    cp_async_commit();
    const int query = walk.tile * kStep + static_cast<int>(threadIdx.x);
    Row row{-minus_infinity(), 0.0f, 0};
    if (static_cast<int>(threadIdx.x) < kStep && query < s.seq) {
      const std::int64_t at =
          (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq + query;
      row.lse = p.statistics[at] * kLog2E;
      row.delta = p.workspace.delta[at];
      if (spans != nullptr) row.first = p.first_key[token0 + query];
    }
    return row;
  };
  const auto end_load = [&](const Row& row, int stage) {
    if (threadIdx.x < kStep) {
      lse[stage][threadIdx.x] = row.lse;
      delta[stage][threadIdx.x] = row.delta;
      first[stage][threadIdx.x] = row.first;
    }
  };

  load_tile<kD, kRows, kBlockThreads>(shared.keys, packed + (s.heads + kv_head) * kD,
                                      s.packed_stride, key0, s.seq);
  load_tile<kD, kRows, kBlockThreads>(shared.values, packed + (s.heads + s.kv_heads + kv_head) * kD,
                                      s.packed_stride, key0, s.seq);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  // This warp's rows of K, or of V.
  const KeptRows<kD, 0> kept(sums_values ? shared.keys : shared.values, row0, nullptr, warp);
  float sum[2][kD / 8][4];  // dV, or dK
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;
    }
  }
  __syncthreads();  // The walk takes the place of keys and values.

  const int t = lane_index() % 4;
  const float scale = s.scale * kLog2E;
  Walk walk = seeing({0, first_tile, 0}, spans, first_tile, tiles, group, last_key);
  int stage = 0, parity = 0;
  bool has_previous = false;
  if (walk.member < group) end_load(begin_load(walk, stage), stage);
  while (walk.member < group || has_previous) {
    const bool has_current = walk.member < group;
    Walk next = walk;
    ++next.tile;
    if (has_current) next = seeing(next, spans, first_tile, tiles, group, last_key);
    const int next_stage = stage == kRing - 1 ? 0 : stage + 1;
    const int previous_stage = stage == 0 ? kRing - 1 : stage - 1;
    cp_async_wait<0>();
    // The current tile is there, P of the previous one, too, and nobody needs the one before it.
    __syncthreads();
    Row row{};
    const bool more = has_current && next.member < group;
    if (more) row = begin_load(next, next_stage);

    if (sums_values ? has_current : has_previous) {
      const int at = sums_values ? stage : previous_stage;
      const Bf16* const q_tile = shared.q + at * kTile;
      const Bf16* const d_out_tile = shared.d_out + at * kTile;
      float4* const exchange = shared.exchange +
                               ((sums_values ? parity : parity ^ 1) * kPairs + warp % kPairs) *
                                   KvShared<kD>::kExchanged +
                               lane_index();
      // 16 queries after the others: registers are what this kernel is short of.
#pragma unroll 1
      for (int k = 0; k < kStep / 16; ++k) {
        float scores[2][2][4];  // P^T, or dS^T
        multiply_kept<kD>(scores, kept, sums_values ? q_tile : d_out_tile, 16 * k);
        if (sums_values) {
          const int query0 = walk.tile * kStep + 16 * k;
          if (query0 < key0 + row0 + kPairRows - 1 || walk.newest > key0) {
            mask_transposed(scores, key0 + row0, query0, first[at] + 16 * k);
          }
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float2 base = *reinterpret_cast<const float2*>(&lse[at][16 * k + 8 * n + 2 * t]);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              float(&c)[4] = scores[m][n];
              c[0] = fast_exp2(c[0] * scale - base.x);
              c[1] = fast_exp2(c[1] * scale - base.y);
              c[2] = fast_exp2(c[2] * scale - base.x);
              c[3] = fast_exp2(c[3] * scale - base.y);
              exchange[(4 * k + 2 * n + m) * kWarpLanes] = make_float4(c[0], c[1], c[2], c[3]);
            }
          }
        } else {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float2 less =
                *reinterpret_cast<const float2*>(&delta[at][16 * k + 8 * n + 2 * t]);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              const float4 probability = exchange[(4 * k + 2 * n + m) * kWarpLanes];
              float(&c)[4] = scores[m][n];
              c[0] = probability.x * (c[0] - less.x);
              c[1] = probability.y * (c[1] - less.y);
              c[2] = probability.z * (c[2] - less.x);
              c[3] = probability.w * (c[3] - less.y);
            }
          }
        }
        const FragmentA left[2] = {to_a(scores[0][0], scores[0][1]),
                                   to_a(scores[1][0], scores[1][1])};
        const Bf16* const right = sums_values ? d_out_tile : q_tile;
#pragma unroll
        for (int n = 0; n < kD / 8; n += 2) {
          const FragmentB b = load_b<kD>(right, 16 * k, n / 2);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma_16x8x16(sum[m][n], left[m].r, b.r[0]);
            mma_16x8x16(sum[m][n + 1], left[m].r, b.r[1]);
          }
        }
      }
    }

    if (more) end_load(row, next_stage);
    has_previous = has_current;
    walk = next;
    stage = next_stage;
    parity ^= 1;
  }
  __syncthreads();  // The results take the place of the walk.
  Bf16* const d_packed = p.d_packed + token0 * s.packed_stride;
  const float by = sums_values ? 1.0f : s.scale;
  const float factor[2] = {by, by};
  const int head = s.heads + kv_head + (sums_values ? s.kv_heads : 0);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    store_rows<kD>(sum[m], factor, sums_values ? shared.values : shared.keys, row0 + 16 * m,
                   d_packed + head * kD, s.packed_stride, key0, s.seq);
  }
}

}  // namespace shardwright::kernels::cuda::flash_gradient
