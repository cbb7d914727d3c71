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
// tile behind the first, and brings the tiles, for exponentials leave the first no time. Each has a
// loop of its own. In kernel 3 both keep the rows of Q and dO, compute dS for half of a tile's keys
// each, exchange it, and add up half of dQ's columns each, one tile behind. Tiles are in a ring, so
// that one barrier a tile is enough.
//
// What bounds them then is how long a warp waits, for there are two on a scheduler. So tiles that
// need no mask, nearly all, have loops of their own, with addresses that move by constants.
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.h"

namespace shardwright::kernels::cuda {
namespace flash_gradient {

// What the kernels of flash attention's backward pass share.
//
// Operands are read from shared memory for each product they enter, and a warp with 16 rows reads
// more than tensor cores can use. So pairs of warps own 32 rows and keep them in registers.

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

// What a block that owns keys has in shared memory, and the tiles of queries and of their output's
// gradient that pass through it.

/// Tiles of queries that see some key of a block, for each query head of its group: [first, end),
/// of which [plain_begin, plain_end) see all of them. That is empty or lies within the former.
struct QueryTiles {
  int first, end;
  int plain_begin, plain_end;

  __device__ __forceinline__ bool is_masked(int tile) const {
    return tile < plain_begin || (tile >= plain_end && tile < end);
  }
};

/// All threads of the block take part; `scratch` as for block_span.
__device__ __forceinline__ QueryTiles query_tiles(const Backward& p, int sequence, int key0,
                                                  int2 (&scratch)[kWarps]) {
  static_assert(kStep == kFlashSpanQueries);
  const int seq = p.shape.seq, count = span_count(seq);
  QueryTiles tiles{key0 / kStep, count, (key0 + kRows) / kStep, count};
  if (p.first_key != nullptr) {
    const int2* const spans = p.workspace.spans + static_cast<std::int64_t>(sequence) * count;
    const int last_key = min(key0 + kRows, seq) - 1;
    // The first one that does not see all keys, and the end of those that see any.
    int2 bounds = {count, 0};
    for (int i = tiles.first + static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) {
      const int2 span = spans[i];
      if (span.y > key0) bounds.x = min(bounds.x, i);
      if (span.x <= last_key) bounds.y = i + 1;
    }
    bounds = block_span(bounds, scratch);
    tiles.plain_end = min(bounds.x, bounds.y);
    tiles.end = bounds.y;
  }
  if (tiles.plain_begin >= tiles.plain_end) tiles.plain_begin = tiles.plain_end = tiles.end;
  return tiles;
}

/// What each query of the ring's tiles has: arrays of [kRing][kStep] numbers of 4 bytes. What a
/// lane reads lies together: the 4 numbers of 16 queries.
struct RowRing {
  static constexpr int kLse = 0, kDelta = 1, kFirst = 2, kArrays = 3;

  /// Query 8 n + 2 t + i is number i + 2 n of the lanes with this t.
  __device__ __forceinline__ static int place(int query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query % 16 / 8 * 2 + query % 2;
  }
};

/// The places of the kv kernel's shared memory.
template <int kD>
struct KvShared {
  static constexpr int kTile = kStep * kPitch<kD>;
  static constexpr int kExchanged = 2 * kStep / 8 * kWarpLanes;  // float4 of a pair
  static constexpr std::size_t kWalkBytes = 2 * kRing * kTile * sizeof(Bf16) +
                                            2 * kPairs * kExchanged * sizeof(float4) +
                                            RowRing::kArrays * kRing * kStep * sizeof(float);
  static constexpr std::size_t kEndBytes = 2 * kRows * kPitch<kD> * sizeof(Bf16);
  static constexpr std::size_t kBytes = kWalkBytes > kEndBytes ? kWalkBytes : kEndBytes;

  Bf16* q;              // [kRing][kTile]
  Bf16* d_out;          // the same
  float4* exchange;     // [2][kPairs][kExchanged]
  Bf16 *keys, *values;  // [kRows] rows, before and after the walk, in the same place
  float* rows;          // RowRing

  explicit __device__ KvShared(Bf16* base)
      : q(base),
        d_out(base + kRing * kTile),
        exchange(reinterpret_cast<float4*>(base + 2 * kRing * kTile)),
        keys(base),
        values(base + kRows * kPitch<kD>),
        rows(reinterpret_cast<float*>(exchange + 2 * kPairs * kExchanged)) {}
};

/// Brings the tiles, head after head, one turn ahead of those that read them. The warps behind the
/// first kPairs hold it: the others have more to do.
template <int kD>
class QueryRing {
 public:
  static constexpr int kThreads = kPairs * kWarpLanes;

  __device__ __forceinline__ QueryRing(const Backward& p, const KvShared<kD>& shared,
                                       const QueryTiles& tiles, int kv_head, int sequence, int warp)
      : shape_(p.shape),
        tiles_(tiles),
        heads_left_(p.shape.group),
        copies_rows_(warp < (p.first_key == nullptr ? 2 : 3)) {
    const FlashShape& s = p.shape;
    const int thread = warp * kWarpLanes + lane_index();
    const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
    const int head = kv_head * heads_left_, first = tiles.first * kStep;
    row_ = Copy::row(thread);
    to_ = in_one_register(shared.q + Copy::place(thread));
    q_ = p.packed + token0 * s.packed_stride + head * kD +
         Copy::source(thread, first, s.packed_stride);
    d_out_ =
        p.d_out + token0 * s.out_stride + head * kD + Copy::source(thread, first, s.out_stride);
    // A warp each for three arrays of 4 bytes a query; the last one is the same for all heads.
    const std::int64_t row0 = (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq;
    rows_ = warp == RowRing::kLse     ? p.statistics + row0
            : warp == RowRing::kDelta ? p.workspace.delta + row0
                                      : reinterpret_cast<const float*>(p.first_key) + token0;
    rows_ += first + lane_index();
    rows_to_ = in_one_register(shared.rows + warp * kRing * kStep + RowRing::place(lane_index()));
    if (p.first_key == nullptr && warp == RowRing::kFirst) {
      for (int stage = 0; stage < kRing; ++stage) rows_to_[stage * kStep] = 0.0f;
    }
    begin_head();
  }

  /// The tile loaded last is there for all threads, and the last but two is needed no more.
  __device__ __forceinline__ void turn() const {
    cp_async_wait<0>();
    block_barrier();
  }

  /// Whether there is a tile left to load.
  __device__ __forceinline__ bool more() const { return heads_left_ > 0; }
  __device__ __forceinline__ void load() {
    load_within_head();
    if (--left_ == 0) next_head();
  }

  /// For a loop over tiles of one head: load_within_head() as often as left_of_head(), then
  /// next_head().
  __device__ __forceinline__ int left_of_head() const { return left_; }
  __device__ __forceinline__ void load_within_head() {
    Bf16* const to = to_ + stage_ * KvShared<kD>::kTile;
    Copy::begin(to, q_, shape_.packed_stride, rows_left_ - row_);
    Copy::begin(to + kRing * KvShared<kD>::kTile, d_out_, shape_.out_stride, rows_left_ - row_);
    // Queries behind the end get zeros: with theirs of Q and dO nothing comes of them.
    if (copies_rows_) cp_async<4>(rows_to_ + stage_ * kStep, rows_, lane_index() < rows_left_);
    cp_async_commit();
    stage_ = stage_ == kRing - 1 ? 0 : stage_ + 1;
    rows_left_ -= kStep;
    q_ += std::int64_t{kStep} * shape_.packed_stride;
    d_out_ += std::int64_t{kStep} * shape_.out_stride;
    rows_ += kStep;
  }
  __device__ __forceinline__ void next_head() {
    --heads_left_;
    begin_head();
    const int back = left_ * kStep;
    q_ += kD - std::int64_t{back} * shape_.packed_stride;
    d_out_ += kD - std::int64_t{back} * shape_.out_stride;
    const bool same = Again().warp() == kPairs + RowRing::kFirst;
    rows_ += (same ? 0 : shape_.seq) - back;
  }

 private:
  using Copy = TileCopy<kD, kStep, kThreads>;

  __device__ __forceinline__ void begin_head() {
    left_ = tiles_.end - tiles_.first;
    rows_left_ = shape_.seq - tiles_.first * kStep;
  }

  const FlashShape& shape_;
  const QueryTiles& tiles_;  // in shared memory
  int heads_left_, left_, rows_left_;
  bool copies_rows_;
  int row_;
  Bf16* to_;
  const Bf16 *q_, *d_out_;
  const float* rows_;
  float* rows_to_;
  int stage_ = 0;
};

// Gradients of keys and values: a block owns 128 keys of a key head and walks over the query heads
// of its group and their queries.

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

// Gradients of queries: a block owns 128 queries of a head and walks over their keys.

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
        left[m] = FragmentA{{r.x, r.y, r.z, r.w}};
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

// The kernels that go before, and launches.

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

template <int kD>
void launch_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                     cudaStream_t stream) {
  const AttentionShape& s = problem.shape;
  const Backward parameters{.shape = {.seq = static_cast<int>(s.seq),
                                      .heads = static_cast<int>(s.heads),
                                      .kv_heads = static_cast<int>(s.kv_heads),
                                      .group = static_cast<int>(s.group()),
                                      .packed_stride = static_cast<int>(problem.packed_stride),
                                      .out_stride = static_cast<int>(problem.out_stride),
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

}  // namespace flash_gradient

void flash_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                    cudaStream_t stream) {
  if (problem.shape.head_dim == 64)
    return flash_gradient::launch_backward<64>(problem, arrays, stream);
  flash_gradient::launch_backward<128>(problem, arrays, stream);
}

}  // namespace shardwright::kernels::cuda
