// SPDX-License-Identifier: Apache-2.0
// What a block that owns keys has in shared memory, and the tiles of queries and of their output's
// gradient that pass through it. For .cu files only.
#pragma once

#include "kernels/cuda/flash_backward.h"

namespace shardwright::kernels::cuda::flash_gradient {

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

}  // namespace shardwright::kernels::cuda::flash_gradient
