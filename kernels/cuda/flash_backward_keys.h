// SPDX-License-Identifier: Apache-2.0
// Gradients of keys and values: a block owns 128 keys of a key head and walks over the query heads
// of its group and their queries (kernels/cuda/flash_attention_backward.cu). For .cu files only.
#pragma once

#include "kernels/cuda/flash_backward.h"
#include "kernels/cuda/flash_query_ring.h"

namespace shardwright::kernels::cuda::flash_gradient {

/// Sets transposed scores of a warp's 32 keys and of queries [query0, query0 + 16) to minus
/// infinity where a query does not see a key. `first` is this lane's queries' first keys.
__device__ __forceinline__ void mask_transposed(float (&scores)[2][2][4], int query0,
                                                const int4& first) {
  const Again again;
  const int key = again.rows * kRows + again.warp() % kPairs * kPairRows + again.lane() / 4;
  const int newer = key - (query0 + again.lane() % 4 * 2);  // of this lane's first ones
  const int unseen[4] = {first.x - key, first.y - key, first.z - key, first.w - key};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = 16 * m + i / 2 * 8, across = 8 * n + i % 2;
        // Not ||: a branch an element would cost more than the products do.
        const bool hidden = (newer > across - down) | (unseen[2 * n + i % 2] > down);
        scores[m][n][i] = hidden ? minus_infinity() : scores[m][n][i];
      }
    }
  }
}

/// sum[32 x kD] += left[32 x 16], rounded to bf16, times rows [row, row + 16) of a tile; `lane`
/// lies lane_of_rows behind its beginning.
template <int kD>
__device__ __forceinline__ void add_product(float (&sum)[2][kD / 8][4],
                                            const float (&left)[2][2][4], const Bf16* lane,
                                            int row) {
  const FragmentA a[2] = {to_a(left[0][0], left[0][1]), to_a(left[1][0], left[1][1])};
#pragma unroll
  for (int n = 0; n < kD / 8; n += 2) {
    const FragmentB b = load_b<kD>(lane, row, n / 2);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma_16x8x16(sum[m][n], a[m].r, b.r[0]);
      mma_16x8x16(sum[m][n + 1], a[m].r, b.r[1]);
    }
  }
}

/// What one of a pair's two warps knows on its walk.
template <int kD>
struct KvWarp {
  static constexpr int kTile = KvShared<kD>::kTile;
  static constexpr int kParity = kPairs * KvShared<kD>::kExchanged;
  // Where this lane begins in the tile it is at, of the ring that meets the kept rows and of the
  // one that makes the sums; in their RowRing row, of lse or of delta; and in what the pair
  // exchanges.
  const Bf16* scored;
  const Bf16* added;
  const float* rows;
  float4* exchange;
  const QueryTiles& tiles;
  int members;  // query heads of the group
  float scale;  // of scores before exp2
  const KeptRows<kD, 0>& kept;
  float (&sum)[2][kD / 8][4];
  int stage = 0, parity = 0;

  /// Of this lane's queries among [16 k, 16 k + 16) of the tile, or their first keys.
  template <class Pack>
  __device__ __forceinline__ Pack of_rows(int k, int array = 0) const {
    return *reinterpret_cast<const Pack*>(rows + array * kRing * kStep + 16 * k);
  }
  __device__ __forceinline__ void next() {
    const bool turns = stage == kRing - 1;
    const int on = turns ? 1 - kRing : 1;
    scored += on * kTile;
    added += on * kTile;
    rows += on * kStep;
    exchange += parity == 0 ? kParity : -kParity;
    stage = turns ? 0 : stage + 1;
    parity ^= 1;
  }

  /// dV += P^T dO; P is for the other warp of the pair.
  template <bool kMasked>
  __device__ __forceinline__ void add_values(int tile) {
#pragma unroll(kMasked ? 1 : 2)
    for (int k = 0; k < kStep / 16; ++k) {
      float scores[2][2][4];
      multiply_kept<kD>(scores, kept, scored, 16 * k);
      if constexpr (kMasked) {
        mask_transposed(scores, tile * kStep + 16 * k, of_rows<int4>(k, RowRing::kFirst));
      }
      const float4 lse = of_rows<float4>(k);
      const float base[4] = {lse.x * kLog2E, lse.y * kLog2E, lse.z * kLog2E, lse.w * kLog2E};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          float(&c)[4] = scores[m][n];
#pragma unroll
          for (int i = 0; i < 4; ++i) c[i] = fast_exp2(c[i] * scale - base[2 * n + i % 2]);
          exchange[(4 * k + 2 * n + m) * kWarpLanes] = make_float4(c[0], c[1], c[2], c[3]);
        }
      }
      add_product<kD>(sum, scores, added, 16 * k);
    }
  }

  /// dK += dS^T Q, with P of the other warp.
  template <bool kHot>
  __device__ __forceinline__ void add_keys() {
#pragma unroll(kHot ? 2 : 1)
    for (int k = 0; k < kStep / 16; ++k) {
      float scores[2][2][4];
      multiply_kept<kD>(scores, kept, scored, 16 * k);
      const float4 delta = of_rows<float4>(k);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 less = n == 0 ? make_float2(delta.x, delta.y) : make_float2(delta.z, delta.w);
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
      add_product<kD>(sum, scores, added, 16 * k);
    }
  }

  __device__ __forceinline__ void walk_for_values() {
    for (int heads_left = members; heads_left > 0; --heads_left) {
      int tile = tiles.first, stop = tiles.plain_begin;
      settle(stop);
      while (true) {
        for (; tile < stop; ++tile) {
          block_barrier();
          add_values<true>(tile);
          next();
        }
        if (tile == tiles.end) break;
        for (int left = tiles.plain_end - tile; left > 0; --left) {
          block_barrier();
          add_values<false>(0);
          next();
        }
        tile = tiles.plain_end;
        stop = tiles.end;
        settle(stop);
      }
    }
    block_barrier();
  }

  /// One turn behind the other warp.
  __device__ __forceinline__ void walk_for_keys(QueryRing<kD> ring) {
    ring.load();
    ring.turn();
    if (ring.more()) ring.load();
    while (ring.more()) {
      for (int left = ring.left_of_head(); left > 0; --left) {
        ring.turn();
        ring.load_within_head();
        add_keys<true>();
        next();
      }
      ring.next_head();
    }
    // Two tiles are left, or the only one.
    for (int left = min(members * (tiles.end - tiles.first), 2); left > 0; --left) {
      ring.turn();
      add_keys<false>();
      next();
    }
  }
};

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 1) flash_backward_kv_kernel(Backward p) {
  __shared__ int2 scratch[kWarps];
  __shared__ QueryTiles tiles;
  const KvShared<kD> shared(dynamic_shared<Bf16>());

  const FlashShape& s = p.shape;
  const int key0 = static_cast<int>(blockIdx.x) * kRows;
  const int kv_head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  const Bf16* const packed = p.packed + token0 * s.packed_stride;

  // The same for all lanes of a warp, which the compiler cannot know of threadIdx.
  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  const bool sums_values = warp < kPairs;  // else keys
  const int row0 = warp % kPairs * kPairRows;

  load_tile<kD, kRows, kBlockThreads>(shared.keys, packed + (s.heads + kv_head) * kD,
                                      s.packed_stride, key0, s.seq);
  load_tile<kD, kRows, kBlockThreads>(shared.values, packed + (s.heads + s.kv_heads + kv_head) * kD,
                                      s.packed_stride, key0, s.seq);
  cp_async_commit();
  const QueryTiles found = query_tiles(p, sequence, key0, scratch);
  if (threadIdx.x == 0) tiles = found;
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

  const int row_array = sums_values ? RowRing::kLse : RowRing::kDelta;
  KvWarp<kD> walk{
      .scored = in_one_register((sums_values ? shared.q : shared.d_out) + lane_of_columns<kD>()),
      .added = in_one_register((sums_values ? shared.d_out : shared.q) + lane_of_rows<kD>()),
      .rows = in_one_register(shared.rows + row_array * kRing * kStep + 4 * (lane_index() % 4)),
      .exchange = in_one_register(shared.exchange + warp % kPairs * KvShared<kD>::kExchanged +
                                  lane_index()),
      .tiles = tiles,
      .members = s.group,
      .scale = s.scale * kLog2E,
      .kept = kept,
      .sum = sum};
  if (sums_values) {
    walk.walk_for_values();
  } else {
    walk.walk_for_keys(QueryRing<kD>(p, shared, tiles, kv_head, sequence, warp - kPairs));
  }
  __syncthreads();  // The results take the place of the walk.
  const Again again;
  const bool stores_values = again.warp() < kPairs;
  const float by = stores_values ? 1.0f : s.scale;
  const float factor[2] = {by, by};
  const int head = s.heads + again.head + (stores_values ? s.kv_heads : 0);
  Bf16* const to = p.d_packed + std::int64_t{again.sequence} * s.seq * s.packed_stride + head * kD;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    store_rows<kD>(sum[m], factor, stores_values ? shared.values : shared.keys,
                   again.warp() % kPairs * kPairRows + 16 * m, to, s.packed_stride,
                   again.rows * kRows, s.seq, again.lane());
  }
}

}  // namespace shardwright::kernels::cuda::flash_gradient
