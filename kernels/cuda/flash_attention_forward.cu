// SPDX-License-Identifier: Apache-2.0
// The forward pass. A block computes 128 queries of one head, 32 of them a warp. It walks over
// tiles of 64 keys from the diagonal down to the first key that a query sees, keeps for every query
// the maximum and the sum of its scores so far, and scales the output when the maximum rises
// (online softmax). Tiles that no query sees are never loaded; only tiles that some query sees in
// part are masked.
//
// The values of a tile are on their way while its scores are computed, the next keys while the
// values are used.
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kRowTiles = 2;  // of 16 queries a warp
constexpr int kQueries = kFlashWarps * 16 * kRowTiles;
constexpr int kKeys = 64;

struct Forward {
  FlashShape shape;
  const Bf16* packed;
  const std::int32_t* first_key;
  Bf16* out;
  float* statistics;
};

template <int kD>
constexpr std::size_t shared_bytes() {
  return std::size_t{kQueries + 2 * kKeys} * kPitch<kD> * sizeof(Bf16);
}

/// Sets the scores of keys that a query does not see to minus infinity. First keys are read again
/// for each of the few tiles that need it: registers are what this kernel is short of.
__device__ __forceinline__ void mask(float (&scores)[kKeys / 8][4], int key0, int query0,
                                     const std::int32_t* first_key, int seq) {
  const int g = lane_index() / 4, t = lane_index() % 4;
  int first[2] = {0, 0};
  if (first_key != nullptr) {
    first[0] = first_key[min(query0 + g, seq - 1)];
    first[1] = first_key[min(query0 + g + 8, seq - 1)];
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = key0 + 8 * n + 2 * t + i % 2, query = query0 + g + i / 2 * 8;
      if (key > query || key < first[i / 2]) scores[n][i] = minus_infinity();
    }
  }
}

/// Four lanes hold a row.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// Turns scores into exponentials and brings maximum, this lane's part of the sum, and output to
/// the new maximum.
template <int kD>
__device__ __forceinline__ void online_softmax(float (&scores)[kKeys / 8][4], float (&largest)[2],
                                               float (&sum)[2], float (&out)[kD / 8][4],
                                               float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float maximum = largest[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      maximum = fmaxf(maximum, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    maximum = quad_max(maximum);
    // A row that has seen no key yet keeps zeros.
    const float base = maximum == minus_infinity() ? 0.0f : maximum * scale;
    const float correction = fast_exp2(largest[half] * scale - base);
    largest[half] = maximum;
    sum[half] *= correction;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = fast_exp2(scores[n][i] * scale - base);
        sum[half] += scores[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      out[n][2 * half] *= correction;
      out[n][2 * half + 1] *= correction;
    }
  }
}

template <int kD>
__global__ void __launch_bounds__(kFlashThreads) flash_forward_kernel(Forward p) {
  Bf16* const q_tile = dynamic_shared<Bf16>();
  Bf16* const k_tile = q_tile + kQueries * kPitch<kD>;
  Bf16* const v_tile = k_tile + kKeys * kPitch<kD>;
  __shared__ int2 scratch[kFlashWarps];

  const FlashShape& s = p.shape;
  // The longest rows first, so that the short ones fill the end.
  const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head / s.group;
  const Bf16* const packed =
      p.packed + static_cast<std::int64_t>(sequence) * s.seq * s.packed_stride;
  const Bf16* const q = packed + head * kD;
  const Bf16* const k = packed + (s.heads + kv_head) * kD;
  const Bf16* const v = packed + (s.heads + s.kv_heads + kv_head) * kD;
  const std::int32_t* const first_key =
      p.first_key == nullptr ? nullptr : p.first_key + static_cast<std::int64_t>(sequence) * s.seq;

  const int query_end = min(query0 + kQueries, s.seq);
  const int2 span = first_key_span<kQueries>(first_key, query0, query_end, scratch);
  const int first_tile = span.x / kKeys;
  int tile = (query_end - 1) / kKeys;

  load_tile<kD, kQueries>(q_tile, q, s.packed_stride, query0, s.seq);
  load_tile<kD, kKeys>(k_tile, k, s.packed_stride, tile * kKeys, s.seq);
  cp_async_commit();

  const int row0 = warp_index() * 16 * kRowTiles;  // of this warp in the tile
  const int g = lane_index() / 4, t = lane_index() % 4;
  float largest[kRowTiles][2], sum[kRowTiles][2], out[kRowTiles][kD / 8][4];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[m][half] = minus_infinity();
      sum[m][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0f;
    }
  }

  const Bf16* const q_lane = q_tile + chunk_at<kD>(row0, 0) + lane_of_rows<kD>();
  const Bf16* const k_lane = k_tile + lane_of_columns<kD>();
  const Bf16* const v_lane = v_tile + lane_of_rows<kD>();
  const float scale = s.scale * kLog2E;
  for (; tile >= first_tile; --tile) {
    const int key0 = tile * kKeys;
    cp_async_wait<0>();
    __syncthreads();  // The keys are there, and nobody needs the last values any more.
    load_tile<kD, kKeys>(v_tile, v, s.packed_stride, key0, s.seq);
    cp_async_commit();

    float scores[kRowTiles][kKeys / 8][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
      }
    }
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      FragmentA a[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) a[m] = load_a<kD>(q_lane, 16 * m, d);
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        const FragmentB b = load_b_transposed<kD>(k_lane, 8 * n, d);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma_16x8x16(scores[m][n], a[m].r, b.r[0]);
          mma_16x8x16(scores[m][n + 1], a[m].r, b.r[1]);
        }
      }
    }

    cp_async_wait<0>();
    __syncthreads();  // The values are there, and nobody needs the keys any more.
    if (tile > first_tile) {
      load_tile<kD, kKeys>(k_tile, k, s.packed_stride, key0 - kKeys, s.seq);
      cp_async_commit();
    }

    // Rounded as soon as they are known: half as many registers.
    FragmentA left[kRowTiles][kKeys / 16];
    const bool partial = key0 + kKeys - 1 > query0 || key0 < span.y;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (partial) mask(scores[m], key0, query0 + row0 + 16 * m, first_key, s.seq);
      online_softmax<kD>(scores[m], largest[m], sum[m], out[m], scale);
#pragma unroll
      for (int key = 0; key < kKeys / 16; ++key) {
        left[m][key] = to_a(scores[m][2 * key], scores[m][2 * key + 1]);
      }
    }
#pragma unroll
    for (int key = 0; key < kKeys / 16; ++key) {
#pragma unroll
      for (int n = 0; n < kD / 8; n += 2) {
        const FragmentB b = load_b<kD>(v_lane, 16 * key, n / 2);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma_16x8x16(out[m][n], left[m][key].r, b.r[0]);
          mma_16x8x16(out[m][n + 1], left[m][key].r, b.r[1]);
        }
      }
    }
  }

  float* const statistics =
      p.statistics + (static_cast<std::int64_t>(sequence) * s.heads + head) * s.seq;
  Bf16* const rows = p.out + static_cast<std::int64_t>(sequence) * s.seq * s.out_stride + head * kD;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(sum[m][half]);
      const int query = query0 + row0 + 16 * m + g + 8 * half;
      factor[half] = 1.0f / total;
      if (t == 0 && query < s.seq) {
        statistics[query] = largest[m][half] * s.scale + logf(total);
      }
    }
    store_rows<kD>(out[m], factor, q_tile, row0 + 16 * m, rows, s.out_stride, query0, s.seq,
                   lane_index());
  }
}

template <int kD>
void launch_forward(const AttentionProblem& problem, const AttentionForward& arrays,
                    cudaStream_t stream) {
  const AttentionShape& s = problem.shape;
  const Forward parameters{.shape = {.seq = static_cast<int>(s.seq),
                                     .heads = static_cast<int>(s.heads),
                                     .kv_heads = static_cast<int>(s.kv_heads),
                                     .group = static_cast<int>(s.group()),
                                     .packed_stride = static_cast<int>(problem.packed_stride),
                                     .out_stride = static_cast<int>(problem.out_stride),
                                     .scale = static_cast<float>(s.scale)},
                           .packed = static_cast<const Bf16*>(arrays.packed),
                           .first_key = arrays.first_key,
                           .out = static_cast<Bf16*>(arrays.out),
                           .statistics = arrays.statistics};
  const dim3 grid(static_cast<unsigned>((s.seq + kQueries - 1) / kQueries),
                  static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  launch(flash_forward_kernel<kD>, {grid, dim3(kFlashThreads), shared_bytes<kD>()}, stream,
         parameters);
}

}  // namespace

void flash_forward(const AttentionProblem& problem, const AttentionForward& arrays,
                   cudaStream_t stream) {
  if (problem.shape.head_dim == 64) return launch_forward<64>(problem, arrays, stream);
  launch_forward<128>(problem, arrays, stream);
}

}  // namespace shardwright::kernels::cuda
