// SPDX-License-Identifier: Apache-2.0
// The backward pass in three kernels that add in a fixed order and nothing atomically.
//
// 1. delta: sums over D of out times its gradient, a row a few lanes; and of packed documents, what
//    first key tiles of queries see, so that the others can skip them.
// 2. Keys and values: a block owns 64 keys of a key head and walks over the query heads of its
//    group and their queries from the diagonal on. It computes scores transposed, keys down and
//    queries across: then both P^T and dS^T leave one product as the left operand of the next,
//    P^T dO for dV and dS^T Q for dK, and nothing goes through shared memory.
// 3. Queries: a block owns 64 queries of a head and walks over their keys: dS K for dQ. That
//    computes scores and their gradient a second time: 7 products where adding dQ atomically in 2
//    would take 5. It is the price of equal bits every time without more memory.
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_tile.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kRows = kFlashWarps * 16;  // that a block owns: keys or queries

/// Queries or keys that a block walks over at a time, so that two blocks fit on an SM of sm_80.
template <int kD>
constexpr int kStep = kD == 128 ? 32 : 64;

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

/// The span of queries [tile * kQueries, ...), which come in whole entries.
template <int kQueries>
__device__ __forceinline__ int2 tile_span(const int2* spans, int tile, int seq) {
  constexpr int kEntries = kQueries / kFlashSpanQueries;
  int2 span = spans[tile * kEntries];
#pragma unroll
  for (int i = 1; i < kEntries; ++i) {
    if (tile * kEntries + i < span_count(seq)) {
      const int2 more = spans[tile * kEntries + i];
      span = {min(span.x, more.x), max(span.y, more.y)};
    }
  }
  return span;
}

/// Where a block that owns keys is on its walk: a query head of the group and a tile of queries.
struct Walk {
  int member;
  int tile;
  int2 span;  // of the tile
};

/// The next tile, `walk.tile` included, that sees some key up to `last_key`; behind the last one
/// walk.member is `members`.
template <int kQueries>
__device__ __forceinline__ Walk seeing(Walk walk, const int2* spans, int first_tile, int tiles,
                                       int members, int last_key, int seq) {
  for (;; ++walk.tile) {
    if (walk.tile >= tiles) {
      ++walk.member;
      walk.tile = first_tile;
    }
    if (spans == nullptr || walk.member >= members) return walk;
    walk.span = tile_span<kQueries>(spans, walk.tile, seq);
    if (walk.span.x <= last_key) return walk;
  }
}

template <int kD>
constexpr std::size_t kv_shared_bytes() {
  return (2 * kRows + 4 * kStep<kD>)*kD * sizeof(Bf16);
}

template <int kD>
__global__ void __launch_bounds__(kFlashThreads) flash_backward_kv_kernel(Backward p) {
  constexpr int kQueries = kStep<kD>, kTile = kQueries * kD;
  Bf16* const k_tile = dynamic_shared<Bf16>();
  Bf16* const v_tile = k_tile + kRows * kD;
  Bf16* const q_tiles = v_tile + kRows * kD;
  Bf16* const d_out_tiles = q_tiles + 2 * kTile;
  __shared__ float lse[2][kQueries], delta[2][kQueries];
  __shared__ int first[2][kQueries];

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
  const int first_tile = key0 / kQueries, tiles = (s.seq + kQueries - 1) / kQueries;
  const int last_key = min(key0 + kRows, s.seq) - 1;

  // What thread i of the first kQueries knows of query i of a tile; queries behind the end have a
  // probability of 0.
  struct Row {
    float lse, delta;
    int first;
  };
  const auto begin_load = [&](const Walk& walk, int stage) {
    const int head = kv_head * group + walk.member;
    load_tile<kD, kQueries>(q_tiles + stage * kTile, packed + head * kD, s.packed_stride,
                            walk.tile * kQueries, s.seq);
    load_tile<kD, kQueries>(d_out_tiles + stage * kTile,
                            p.d_out + token0 * s.out_stride + head * kD, s.out_stride,
                            walk.tile * kQueries, s.seq);
    cp_async_commit();
    const int query = walk.tile * kQueries + static_cast<int>(threadIdx.x);
    Row row{-minus_infinity(), 0.0f, 0};
    if (static_cast<int>(threadIdx.x) < kQueries && query < s.seq) {
      const std::int64_t at =
          (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq + query;
      row.lse = p.statistics[at] * kLog2E;
      row.delta = p.workspace.delta[at];
      if (spans != nullptr) row.first = p.first_key[token0 + query];
    }
    return row;
  };
  const auto end_load = [&](const Row& row, int stage) {
    if (threadIdx.x < kQueries) {
      lse[stage][threadIdx.x] = row.lse;
      delta[stage][threadIdx.x] = row.delta;
      first[stage][threadIdx.x] = row.first;
    }
  };

  load_tile<kD, kRows>(k_tile, packed + (s.heads + kv_head) * kD, s.packed_stride, key0, s.seq);
  load_tile<kD, kRows>(v_tile, packed + (s.heads + s.kv_heads + kv_head) * kD, s.packed_stride,
                       key0, s.seq);
  Walk walk =
      seeing<kQueries>({0, first_tile, {0, 0}}, spans, first_tile, tiles, group, last_key, s.seq);
  int stage = 0;
  end_load(begin_load(walk, stage), stage);

  const int row0 = warp_index() * 16;
  const int g = lane_index() / 4, t = lane_index() % 4;
  const float scale = s.scale * kLog2E;
  float d_k[kD / 8][4], d_v[kD / 8][4];
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d_k[n][i] = d_v[n][i] = 0.0f;
  }

  while (walk.member < group) {
    const Walk next = seeing<kQueries>({walk.member, walk.tile + 1, {0, 0}}, spans, first_tile,
                                       tiles, group, last_key, s.seq);
    const bool more = next.member < group;
    Row row{};
    if (more) {
      row = begin_load(next, stage ^ 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();

    const Bf16* const q_tile = q_tiles + stage * kTile;
    const Bf16* const d_out_tile = d_out_tiles + stage * kTile;
    const int query0 = walk.tile * kQueries;
    float p_t[kQueries / 8][4], d_s_t[kQueries / 8][4];
    multiply_transposed<kD>(p_t, k_tile, row0, q_tile);
    const bool partial = query0 < last_key || walk.span.y > key0;
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + 2 * t + i % 2, key = key0 + row0 + g + i / 2 * 8;
        const bool hidden = partial && (key > query0 + column || key < first[stage][column]);
        p_t[n][i] = hidden ? 0.0f : fast_exp2(p_t[n][i] * scale - lse[stage][column]);
      }
    }
    multiply_add<kD>(d_v, p_t, d_out_tile);
    multiply_transposed<kD>(d_s_t, v_tile, row0, d_out_tile);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d_s_t[n][i] = p_t[n][i] * (d_s_t[n][i] - delta[stage][8 * n + 2 * t + i % 2]);
      }
    }
    multiply_add<kD>(d_k, d_s_t, q_tile);

    if (more) end_load(row, stage ^ 1);
    __syncthreads();
    stage ^= 1;
    walk = next;
  }
  // Each warp reads its own rows of K and V only, so that they can carry its results.
  cp_async_wait<0>();
  Bf16* const d_packed = p.d_packed + token0 * s.packed_stride;
  const float k_factor[2] = {s.scale, s.scale}, v_factor[2] = {1.0f, 1.0f};
  store_rows<kD>(d_k, k_factor, k_tile, row0, d_packed + (s.heads + kv_head) * kD, s.packed_stride,
                 key0, s.seq);
  store_rows<kD>(d_v, v_factor, v_tile, row0, d_packed + (s.heads + s.kv_heads + kv_head) * kD,
                 s.packed_stride, key0, s.seq);
}

template <int kD>
constexpr std::size_t q_shared_bytes() {
  return (2 * kRows + 4 * kStep<kD>)*kD * sizeof(Bf16);
}

template <int kD>
__global__ void __launch_bounds__(kFlashThreads) flash_backward_q_kernel(Backward p) {
  constexpr int kKeys = kStep<kD>, kTile = kKeys * kD;
  Bf16* const q_tile = dynamic_shared<Bf16>();
  Bf16* const d_out_tile = q_tile + kRows * kD;
  Bf16* const k_tiles = d_out_tile + kRows * kD;
  Bf16* const v_tiles = k_tiles + 2 * kTile;
  __shared__ int2 scratch[kFlashWarps];

  const FlashShape& s = p.shape;
  const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head / (s.heads / s.kv_heads);
  const std::int64_t token0 = static_cast<std::int64_t>(sequence) * s.seq;
  const Bf16* const packed = p.packed + token0 * s.packed_stride;
  const std::int32_t* const first_key = p.first_key == nullptr ? nullptr : p.first_key + token0;
  const int query_end = min(query0 + kRows, s.seq);
  const int2 span = block_span<kRows>(first_key, query0, query_end, scratch);
  const int last_tile = (query_end - 1) / kKeys;
  int tile = span.x / kKeys;

  const auto begin_load = [&](int at, int stage) {
    load_tile<kD, kKeys>(k_tiles + stage * kTile, packed + (s.heads + kv_head) * kD,
                         s.packed_stride, at * kKeys, s.seq);
    load_tile<kD, kKeys>(v_tiles + stage * kTile, packed + (s.heads + s.kv_heads + kv_head) * kD,
                         s.packed_stride, at * kKeys, s.seq);
    cp_async_commit();
  };
  load_tile<kD, kRows>(q_tile, packed + head * kD, s.packed_stride, query0, s.seq);
  load_tile<kD, kRows>(d_out_tile, p.d_out + token0 * s.out_stride + head * kD, s.out_stride,
                       query0, s.seq);
  cp_async_commit();
  int stage = 0;
  begin_load(tile, stage);

  const int row0 = warp_index() * 16;
  const int g = lane_index() / 4, t = lane_index() % 4;
  const float scale = s.scale * kLog2E;
  float lse[2], delta[2];
  int first[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = query0 + row0 + g + 8 * half;
    const bool inside = query < s.seq;
    const std::int64_t at = (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq + query;
    lse[half] = inside ? p.statistics[at] * kLog2E : -minus_infinity();
    delta[half] = inside ? p.workspace.delta[at] : 0.0f;
    first[half] = inside && first_key != nullptr ? first_key[query] : 0;
  }
  cp_async_wait<1>();
  __syncthreads();
  // This warp's rows of Q and dO stay in registers.
  FragmentA q[kD / 16], d_out[kD / 16];
#pragma unroll
  for (int d = 0; d < kD / 16; ++d) {
    q[d] = load_a<kD>(q_tile, row0, d);
    d_out[d] = load_a<kD>(d_out_tile, row0, d);
  }
  float d_q[kD / 8][4];
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d_q[n][i] = 0.0f;
  }

  for (; tile <= last_tile; ++tile, stage ^= 1) {
    if (tile < last_tile) {
      begin_load(tile + 1, stage ^ 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const Bf16* const k_tile = k_tiles + stage * kTile;
    const Bf16* const v_tile = v_tiles + stage * kTile;
    const int key0 = tile * kKeys;
    float probability[kKeys / 8][4], d_s[kKeys / 8][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) probability[n][i] = d_s[n][i] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        const FragmentB k = load_b_transposed<kD>(k_tile, 8 * n, d);
        mma_16x8x16(probability[n], q[d].r, k.r[0]);
        mma_16x8x16(probability[n + 1], q[d].r, k.r[1]);
        const FragmentB v = load_b_transposed<kD>(v_tile, 8 * n, d);
        mma_16x8x16(d_s[n], d_out[d].r, v.r[0]);
        mma_16x8x16(d_s[n + 1], d_out[d].r, v.r[1]);
      }
    }
    const bool partial = key0 + kKeys - 1 > query0 || key0 < span.y;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, key = key0 + 8 * n + 2 * t + i % 2;
        const bool hidden = partial && (key > query0 + row0 + g + 8 * half || key < first[half]);
        const float value = hidden ? 0.0f : fast_exp2(probability[n][i] * scale - lse[half]);
        d_s[n][i] = value * (d_s[n][i] - delta[half]);
      }
    }
    multiply_add<kD>(d_q, d_s, k_tile);
    __syncthreads();  // Nobody needs these keys and values any more.
  }
  const float factor[2] = {s.scale, s.scale};
  store_rows<kD>(d_q, factor, q_tile, row0, p.d_packed + token0 * s.packed_stride + head * kD,
                 s.packed_stride, query0, s.seq);
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
  const dim3 threads(kFlashThreads);
  launch(flash_delta_kernel<kD>, {dim3(blocks(kFlashThreads / (kD / 8)), heads, batch), threads},
         stream, parameters);
  if (arrays.first_key != nullptr) {
    launch(flash_span_kernel, {dim3(blocks(kFlashWarps * kFlashSpanQueries), batch), threads},
           stream, parameters);
  }
  launch(flash_backward_kv_kernel<kD>,
         {dim3(blocks(kRows), kv_heads, batch), threads, kv_shared_bytes<kD>()}, stream,
         parameters);
  launch(flash_backward_q_kernel<kD>,
         {dim3(blocks(kRows), heads, batch), threads, q_shared_bytes<kD>()}, stream, parameters);
}

}  // namespace

void flash_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                    cudaStream_t stream) {
  if (problem.shape.head_dim == 64) return launch_backward<64>(problem, arrays, stream);
  launch_backward<128>(problem, arrays, stream);
}

}  // namespace shardwright::kernels::cuda
