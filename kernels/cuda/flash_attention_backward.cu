// SPDX-License-Identifier: Apache-2.0
// The backward pass in three kernels that add in a fixed order and nothing atomically.
//
// 1. delta: sums over D of out times its gradient, a row a few lanes; and of packed documents, what
//    first key tiles of queries see, so that the others can skip them.
// 2. Keys and values: a block owns 128 keys of a key head and walks over the query heads of its
//    group and their queries from the diagonal on. It computes scores transposed, keys down and
//    queries across: then both P^T and dS^T leave one product as the left operand of the next,
//    P^T dO for dV and dS^T Q for dK.
// 3. Queries: a block owns 128 queries of a head and walks over their keys: dS K for dQ. That
//    computes scores and their gradient a second time: 7 products where adding dQ atomically in 2
//    would take 5. It is the price of equal bits every time without more memory.
//
// What bounds such kernels is how often an operand is read from shared memory for each product it
// enters. A warp with 16 rows reads more than tensor cores can use; with 32 rows it would need
// twice the registers that it has. So two warps share 32 rows.
//
// In kernel 2 one of them computes P and adds up dV, the other one computes dS and adds up dK; each
// keeps its rows of K or of V in registers and does two of the four products. P goes from the first
// to the second through shared memory, in fp32 and in the layout of registers; the second works one
// tile behind the first. In kernel 3 both keep the rows of Q and dO, compute dS for half of a
// tile's keys each, exchange it, and add up half of dQ's columns each, one tile behind. Tiles are
// in a ring, so that one barrier a tile is enough.
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_tile.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kPairs = 4;  // of warps
constexpr int kWarps = 2 * kPairs;
constexpr int kBlockThreads = kWarps * kWarpLanes;
constexpr int kPairRows = 32;
constexpr int kRows = kPairs * kPairRows;  // that a block owns: keys or queries
constexpr int kStep = 32;                  // queries or keys that a block walks over at a time
constexpr int kRing = 3;                   // tiles: one behind, the current one, the next one

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

/// Of two bf16 numbers with two others.
__device__ __forceinline__ float pair_product(unsigned a, unsigned b) {
  return __uint_as_float(a << 16) * __uint_as_float(b << 16) +
         __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
}

template <int kD>
__global__ void __launch_bounds__(kFlashThreads) flash_delta_kernel(Backward p) {
  constexpr int kLanes = kD / 8;  // of 16 bytes each
  const FlashShape& s = p.shape;
  const int query = static_cast<int>(blockIdx.x) * (kFlashThreads / kLanes) +
                    static_cast<int>(threadIdx.x) / kLanes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const bool inside = query < s.seq;
  float sum = 0.0f;
  if (inside) {
    const std::int64_t token = static_cast<std::int64_t>(sequence) * s.seq + query;
    const std::int64_t at =
        token * s.out_stride + head * kD + static_cast<int>(threadIdx.x) % kLanes * 8;
    const uint4 out = *reinterpret_cast<const uint4*>(p.out + at);
    const uint4 d_out = *reinterpret_cast<const uint4*>(p.d_out + at);
    sum = pair_product(out.x, d_out.x) + pair_product(out.y, d_out.y) +
          pair_product(out.z, d_out.z) + pair_product(out.w, d_out.w);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (inside && threadIdx.x % kLanes == 0) {
    const std::int64_t row = static_cast<std::int64_t>(sequence) * s.heads + head;
    p.workspace.delta[row * s.seq + query] = sum;
  }
}

__global__ void __launch_bounds__(kFlashThreads) flash_span_kernel(Backward p) {
  static_assert(kFlashSpanQueries == kWarpLanes);
  const int seq = p.shape.seq, sequence = static_cast<int>(blockIdx.y);
  const int index = static_cast<int>(blockIdx.x) * kFlashWarps + warp_index();
  const int query = index * kFlashSpanQueries + lane_index();
  int2 span = {seq, 0};
  if (query < seq) {
    const int first = p.first_key[static_cast<std::int64_t>(sequence) * seq + query];
    span = {first, first};
  }
  span = warp_span(span);
  if (lane_index() == 0 && index < span_count(seq)) {
    p.workspace.spans[static_cast<std::int64_t>(sequence) * span_count(seq) + index] = span;
  }
}

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
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const FragmentA a = load_a<kD>(tile, row + 16 * m, k);
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

/// result = kept rows times the transpose of rows [row, row + 16) of a tile.
template <int kD, int kSpare>
__device__ __forceinline__ void multiply_kept(float (&result)[2][2][4],
                                              const KeptRows<kD, kSpare>& kept, const Bf16* tile,
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
    const FragmentB b = load_b_transposed<kD>(tile, row, k);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const FragmentA a = kept.at(m, k);
      mma_16x8x16(result[m][0], a.r, b.r[0]);
      mma_16x8x16(result[m][1], a.r, b.r[1]);
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
  __shared__ float lse[kRing][kStep], delta[kRing][kStep];
  __shared__ int first[kRing][kStep];

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

template <int kD>
void launch_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                     cudaStream_t stream) {
  const AttentionShape& s = problem.shape;
  const Backward parameters{.shape = {.seq = static_cast<int>(s.seq),
                                      .heads = static_cast<int>(s.heads),
                                      .kv_heads = static_cast<int>(s.kv_heads),
                                      .packed_stride = problem.packed_stride,
                                      .out_stride = problem.out_stride,
                                      .scale = static_cast<float>(s.scale)},
                            .packed = static_cast<const Bf16*>(arrays.packed),
                            .first_key = arrays.first_key,
                            .out = static_cast<const Bf16*>(arrays.out),
                            .statistics = arrays.statistics,
                            .d_out = static_cast<const Bf16*>(arrays.d_out),
                            .d_packed = static_cast<Bf16*>(arrays.d_packed),
                            .workspace = flash_workspace(s, arrays.workspace)};
  const auto heads = static_cast<unsigned>(s.heads), kv_heads = static_cast<unsigned>(s.kv_heads);
  const auto batch = static_cast<unsigned>(s.batch);
  const auto blocks = [&](std::int64_t rows_a_block) {
    return static_cast<unsigned>((s.seq + rows_a_block - 1) / rows_a_block);
  };
  const dim3 threads(kFlashThreads), block(kBlockThreads);
  launch(flash_delta_kernel<kD>, {dim3(blocks(kFlashThreads / (kD / 8)), heads, batch), threads},
         stream, parameters);
  if (arrays.first_key != nullptr) {
    launch(flash_span_kernel, {dim3(blocks(kFlashWarps * kFlashSpanQueries), batch), threads},
           stream, parameters);
  }
  launch(flash_backward_kv_kernel<kD>,
         {dim3(blocks(kRows), kv_heads, batch), block, KvShared<kD>::kBytes}, stream, parameters);
  launch(flash_backward_q_kernel<kD>,
         {dim3(blocks(kRows), heads, batch), block, QShared<kD>::kBytes}, stream, parameters);
}

}  // namespace

void flash_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                    cudaStream_t stream) {
  if (problem.shape.head_dim == 64) return launch_backward<64>(problem, arrays, stream);
  launch_backward<128>(problem, arrays, stream);
}

}  // namespace shardwright::kernels::cuda
