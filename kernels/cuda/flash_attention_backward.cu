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
#include "kernels/cuda/flash_backward_keys.h"
#include "kernels/cuda/flash_backward_queries.h"
#include "kernels/cuda/flash_tile.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace flash_gradient {

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
