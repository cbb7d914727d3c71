// SPDX-License-Identifier: Apache-2.0
// Gradients of queries: a block owns 128 queries of a head and walks over their keys
// (kernels/cuda/flash_attention_backward.cu). For .cu files only.
#pragma once

#include "kernels/cuda/flash_backward.h"

namespace shardwright::kernels::cuda::flash_gradient {

/// The block's first query: the longest rows come first.
__device__ __forceinline__ int block_query0(int block) {
  return (static_cast<int>(gridDim.x) - 1 - block) * kRows;
}

/// Tiles of keys that some query of a block sees: [first, end), of which [plain_begin, plain_end)
/// are seen by all of them. That is empty or lies within the former, before its last one.
struct KeyTiles {
  int first, end;
  int plain_begin, plain_end;

  __device__ __forceinline__ bool is_masked(int tile) const {
    return tile < plain_begin || (tile >= plain_end && tile < end);
  }
};

/// `span`: the least and greatest first key of queries [query0, query_end).
__device__ __forceinline__ KeyTiles key_tiles(int2 span, int query0, int query_end) {
  const int first = span.x / kStep, end = (query_end - 1) / kStep + 1;
  const int begin = (span.y + kStep - 1) / kStep;
  return begin < query0 / kStep ? KeyTiles{first, end, begin, query0 / kStep}
                                : KeyTiles{first, end, end, end};
}

/// What a lane reads of its four rows g, g + 8, g + 16 and g + 24 in each pair of warps.
struct LaneRows {
  float4 lse, delta;  // logarithms of the sums, for exp2
  int4 first_key;
};

/// All threads of the block take part; queries behind the end have a probability of 0.
__device__ __forceinline__ void read_rows(const Backward& p, int sequence, int head, int query0,
                                          LaneRows (&rows)[kPairs][8]) {
  const FlashShape& s = p.shape;
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kBlockThreads) {
    const bool inside = query0 + row < s.seq;
    const std::int64_t at = token0 * s.heads + std::int64_t{head} * s.seq + query0 + row;
    LaneRows& place = rows[row / kPairRows][row % 8];
    const int which = row % kPairRows / 8;
    (&place.lse.x)[which] = inside ? p.statistics[at] * kLog2E : -minus_infinity();
    (&place.delta.x)[which] = inside ? p.workspace.delta[at] : 0.0f;
    (&place.first_key.x)[which] =
        inside && p.first_key != nullptr ? p.first_key[token0 + query0 + row] : 0;
  }
}

/// Sets a warp's scores, of 32 queries of the block and half of the tile's keys, to minus infinity
/// where a query does not see a key.
__device__ __forceinline__ void mask_scores(float (&scores)[2][kStep / 16][4], int tile,
                                            const int4& first_key) {
  const Again again;
  const int query = block_query0(again.rows) + again.warp() % kPairs * kPairRows + again.lane() / 4;
  const int key = tile * kStep + again.warp() / kPairs * (kStep / 2) + again.lane() % 4 * 2;
  const int newer = key - query;  // of this lane's first ones
  const int unseen[4] = {first_key.x - key, first_key.y - key, first_key.z - key,
                         first_key.w - key};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kStep / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = 16 * m + i / 2 * 8, across = 8 * n + i % 2;
        // Not ||: a branch an element would cost more than the products do.
        const bool hidden = (newer > down - across) | (unseen[2 * m + i / 2] > across);
        scores[m][n][i] = hidden ? minus_infinity() : scores[m][n][i];
      }
    }
  }
}

/// The places of the q kernel's shared memory.
template <int kD>
struct QShared {
  static constexpr int kTile = kStep * kPitch<kD>;
  static constexpr int kExchanged = 2 * 2 * kWarpLanes;  // uint4 of a pair
  /// Steps along D of dO that do not fit into registers.
  static constexpr int kSpare = kD == 128 ? 2 : 0;
  static constexpr std::size_t kWalkBytes =
      (kRing + 2) * kTile * sizeof(Bf16) + 2 * kPairs * kExchanged * sizeof(uint4);
  static constexpr std::size_t kEndBytes = 2 * kRows * kPitch<kD> * sizeof(Bf16);
  static constexpr std::size_t kSpareAt = kWalkBytes > kEndBytes ? kWalkBytes : kEndBytes;
  static constexpr std::size_t kBytes =
      kSpareAt + kWarps * KeptRows<kD, kSpare>::kSpareSize * sizeof(uint4);

  Bf16* keys;             // [kRing][kTile]
  Bf16* values;           // [2][kTile]
  uint4* exchange;        // [2][kPairs][kExchanged]
  Bf16 *queries, *d_out;  // [kRows] rows, before and after the walk, in the same place
  uint4* spare;

  explicit __device__ QShared(Bf16* base)
      : keys(base),
        values(base + kRing * kTile),
        exchange(reinterpret_cast<uint4*>(base + (kRing + 2) * kTile)),
        queries(base),
        d_out(base + kRows * kPitch<kD>),
        spare(reinterpret_cast<uint4*>(base + kSpareAt / sizeof(Bf16))) {}
};

/// What one of a pair's two warps knows on its walk over tiles of keys.
template <int kD>
struct QWarp {
  static constexpr int kTile = QShared<kD>::kTile, kHalf = kStep / 2;
  static constexpr int kParity = kPairs * QShared<kD>::kExchanged;
  using Copy = TileCopy<kD, kStep, kBlockThreads>;
  // Where this lane begins: in the newest tile of keys and of values, in the tile of keys before
  // it, and in what the pair exchanges: now, both warps', and its own for the next turn.
  const Bf16* k_scored;
  const Bf16* v_scored;
  const Bf16* k_added;
  const uint4* exchanged;
  uint4* own_exchange;
  const FlashShape& shape;
  const Bf16* keys;  // the next ones that this thread copies
  Bf16* keys_to;     // where in a tile
  int rows_left;     // how many the array has from there on
  const KeyTiles& tiles;
  const LaneRows& rows;
  const KeptRows<kD, 0>& q;
  const KeptRows<kD, QShared<kD>::kSpare>& d_out;
  float (&d_q)[2][kD / 16][4];  // this warp's half of the columns
  int stage = 0, parity = 0;    // of the newest tile that is there

  __device__ __forceinline__ void load(int to_stage, int to_parity) {
    Copy::begin(keys_to + to_stage * kTile, keys, shape.packed_stride, rows_left);
    Copy::begin(keys_to + (kRing + to_parity) * kTile, keys + shape.kv_heads * kD,
                shape.packed_stride, rows_left);
    cp_async_commit();
    keys += std::int64_t{kStep} * shape.packed_stride;
    rows_left -= kStep;
  }

  __device__ __forceinline__ static int behind(int stage) {
    return stage == kRing - 1 ? 0 : stage + 1;
  }

  /// The tile is there for all threads, dS of the one before it, too, and the next one begins to
  /// come.
  __device__ __forceinline__ void turn(bool more) {
    cp_async_wait<0>();
    __syncthreads();
    if (more) load(behind(stage), parity ^ 1);
  }
  __device__ __forceinline__ void next() {
    const int on = parity == 0 ? 1 : -1;
    k_scored += (stage == kRing - 1 ? 1 - kRing : 1) * kTile;
    v_scored += on * kTile;
    stage = behind(stage);
    parity ^= 1;
  }

  /// dQ += dS K of the tile before the newest one.
  __device__ __forceinline__ void add_previous() {
    const Bf16* const tile = k_added + (stage == 0 ? kRing - 1 : stage - 1) * kTile;
    const uint4* const from = exchanged + (parity ^ 1) * kParity;
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step) {
      FragmentA left[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 r = from[(m * 2 + step) * kWarpLanes];
        left[m] = {{r.x, r.y, r.z, r.w}};
      }
#pragma unroll
      for (int n = 0; n < kD / 16; n += 2) {
        const FragmentB b = load_b<kD>(tile, 16 * step, n / 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_16x8x16(d_q[m][n], left[m].r, b.r[0]);
          mma_16x8x16(d_q[m][n + 1], left[m].r, b.r[1]);
        }
      }
    }
  }

  /// dS of the newest tile, for this warp's half of its keys.
  template <bool kMasked>
  __device__ __forceinline__ void score(int tile) {
    float scores[2][kHalf / 8][4], d_s[2][kHalf / 8][4];
    multiply_kept<kD>(scores, q, k_scored, 0);
    multiply_kept<kD>(d_s, d_out, v_scored, 0);
    if constexpr (kMasked) {
      mask_scores(scores, tile, rows.first_key);
    }
    const float4 lse4 = rows.lse, delta4 = rows.delta;
    const float lse[4] = {lse4.x, lse4.y, lse4.z, lse4.w};
    const float delta[4] = {delta4.x, delta4.y, delta4.z, delta4.w};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
#pragma unroll
        for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
          for (int i = 2 * down; i < 2 * down + 2; ++i) {
            const float probability = fast_exp2(scores[m][n][i] * scale() - lse[2 * m + down]);
            d_s[m][n][i] = probability * (d_s[m][n][i] - delta[2 * m + down]);
          }
        }
      }
      const FragmentA a = to_a(d_s[m][0], d_s[m][1]);
      own_exchange[parity * kParity + m * 2 * kWarpLanes] =
          make_uint4(a.r[0], a.r[1], a.r[2], a.r[3]);
    }
  }
  __device__ __forceinline__ float scale() const {
    return shape.scale * kLog2E;
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(int tile, bool more) {
    turn(more);
    add_previous();
    score<kMasked>(tile);
    next();
  }

  /// dQ of a tile is added up in the turn after its dS.
  __device__ __forceinline__ void walk() {
    int tile = tiles.first;
    load(0, 0);
    turn(tile + 1 < tiles.end);
    score<true>(tile);
    next();
    ++tile;
    while (true) {
      for (; tiles.is_masked(tile); ++tile) step<true>(tile, tile + 1 < tiles.end);
      if (tile == tiles.end) break;
      for (int left = tiles.plain_end - tile; left > 0; --left) step<false>(0, true);
      tile = tiles.plain_end;
    }
    turn(false);
    add_previous();
  }
};

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 1) flash_backward_q_kernel(Backward p) {
  const QShared<kD> shared(dynamic_shared<Bf16>());
  __shared__ int2 scratch[kWarps];
  __shared__ LaneRows rows[kPairs][8];
  __shared__ KeyTiles tiles;

  const FlashShape& s = p.shape;
  const int query0 = block_query0(static_cast<int>(blockIdx.x));
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head / s.group;
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  const Bf16* const packed = p.packed + token0 * s.packed_stride;
  const std::int32_t* const first_key = p.first_key == nullptr ? nullptr : p.first_key + token0;
  const int query_end = min(query0 + kRows, s.seq);
  const int2 span = first_key_span<kRows>(first_key, query0, query_end, scratch);
  const int first_tile = span.x / kStep;
  if (threadIdx.x == 0) tiles = key_tiles(span, query0, query_end);

  // The same for all lanes of a warp, which the compiler cannot know of threadIdx.
  const int warp = __shfl_sync(0xffffffffu, warp_index(), 0);
  const int pair = warp % kPairs, half = warp / kPairs;
  const int row0 = pair * kPairRows;

  load_tile<kD, kRows, kBlockThreads>(shared.queries, packed + head * kD, s.packed_stride, query0,
                                      s.seq);
  load_tile<kD, kRows, kBlockThreads>(shared.d_out, p.d_out + token0 * s.out_stride + head * kD,
                                      s.out_stride, query0, s.seq);
  cp_async_commit();

  read_rows(p, sequence, head, query0, rows);
  cp_async_wait<0>();
  __syncthreads();
  const KeptRows<kD, 0> q(shared.queries, row0, nullptr, warp);
  const KeptRows<kD, QShared<kD>::kSpare> d_out(shared.d_out, row0, shared.spare, warp);
  float d_q[2][kD / 16][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d_q[m][n][i] = 0.0f;
    }
  }
  __syncthreads();  // The walk takes the place of queries and gradients.

  using Copy = typename QWarp<kD>::Copy;
  const int thread = static_cast<int>(threadIdx.x);
  uint4* const exchange = shared.exchange + pair * QShared<kD>::kExchanged + lane_index();
  const Bf16* const scored =
      shared.keys + chunk_at<kD>(half * kStep / 2, 0) + lane_of_columns<kD>();
  const Bf16* const added = shared.keys + chunk_at<kD>(0, half * kD / 16) + lane_of_rows<kD>();
  QWarp<kD> walk{.k_scored = in_one_register(scored),
                 .v_scored = in_one_register(scored + kRing * QShared<kD>::kTile),
                 .k_added = in_one_register(added),
                 .exchanged = in_one_register(exchange),
                 .own_exchange = in_one_register(exchange + half * kWarpLanes),
                 .shape = s,
                 .keys = packed + (s.heads + kv_head) * kD +
                         Copy::source(thread, first_tile * kStep, s.packed_stride),
                 .keys_to = in_one_register(shared.keys + Copy::place(thread)),
                 .rows_left = s.seq - first_tile * kStep - Copy::row(thread),
                 .tiles = tiles,
                 .rows = rows[pair][lane_index() / 4],
                 .q = q,
                 .d_out = d_out,
                 .d_q = d_q};
  walk.walk();
  __syncthreads();  // The results take the place of the walk.
  const Again again;
  const float factor[2] = {s.scale, s.scale};
  Bf16* const to =
      p.d_packed + std::int64_t{again.sequence} * s.seq * s.packed_stride + again.head * kD;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    store_rows<kD>(d_q[m], factor, shared.queries, again.warp() % kPairs * kPairRows + 16 * m, to,
                   s.packed_stride, block_query0(again.rows), s.seq, again.lane(),
                   again.warp() / kPairs * (kD / 16));
  }
}

}  // namespace shardwright::kernels::cuda::flash_gradient
