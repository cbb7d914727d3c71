// SPDX-License-Identifier: Apache-2.0
// How arrays and matrices are spread over blocks. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/access.h"

namespace shardwright::kernels::cuda {

inline constexpr int kThreads = 256;  // of a block, unless a kernel says otherwise
/// Many times what a GPU holds at once; more work than that, blocks loop over.
inline constexpr std::int64_t kMaxBlocks = 4096;

inline unsigned blocks_for(std::int64_t work, std::int64_t work_of_block) {
  const std::int64_t blocks = (work + work_of_block - 1) / work_of_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Flat arrays: `head` single elements, then chunks from an aligned address on, then single ones.

template <int N, class Operation>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(Operation operation, std::int64_t head, std::int64_t chunks,
                       std::int64_t count) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t chunk = thread; chunk < chunks; chunk += threads) {
    operation.template at<N>(head + chunk * N);
  }
  if constexpr (N > 1) {
    const std::int64_t tail = head + chunks * N;
    if (thread < head) operation.template at<1>(thread);
    if (thread < count - tail) operation.template at<1>(tail + thread);
  }
}

/// Elements before the first one from which on chunks of N can be accessed in all arrays; -1 when
/// there is none.
template <int N, class... T>
int aligned_from(const T*... arrays) {
  for (int head = 0; head < N; ++head) {
    if (aligned<N>((arrays + head)...)) return head;
  }
  return -1;
}

/// Runs operation.at<M>(i) for elements i to i + M - 1, M = N or 1, until `count` are done. `head`
/// is what aligned_from<N> says of the arrays.
template <int N, class Operation>
void launch_elementwise(cudaStream_t stream, const Operation& operation, int head,
                        std::int64_t count,
                        std::source_location where = std::source_location::current()) {
  if (count == 0) return;
  if (head < 0 || count < 2 * N) {
    launch(elementwise_kernel<1, Operation>, {blocks_for(count, kThreads), kThreads, 0, where},
           stream, operation, 0, count, count);
    return;
  }
  const std::int64_t chunks = (count - head) / N;
  launch(elementwise_kernel<N, Operation>, {blocks_for(chunks, kThreads), kThreads, 0, where},
         stream, operation, head, chunks, count);
}

// Matrices: a block has `lanes` threads along a row and 256 / lanes rows.

struct RowTiles {
  dim3 grid;   // rows, then columns
  dim3 block;  // columns, then rows
};

/// For rows of `chunks` pieces of work.
inline RowTiles row_tiles(std::int64_t rows, std::int64_t chunks) {
  unsigned lanes = 1;
  while (lanes < kThreads && lanes < chunks) lanes *= 2;
  const std::int64_t column_blocks = (chunks + 4 * lanes - 1) / (4 * lanes);
  return {dim3(blocks_for(rows, kThreads / lanes),
               static_cast<unsigned>(column_blocks < 64 ? column_blocks : 64)),
          dim3(lanes, kThreads / lanes)};
}

/// In a kernel launched with row_tiles: calls body(row, chunk) for this thread's share.
template <class Body>
__device__ __forceinline__ void for_row_chunks(std::int64_t rows, std::int64_t chunks, Body body) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t first_chunk = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (std::int64_t row = first_row; row < rows; row += std::int64_t{gridDim.x} * blockDim.y) {
#pragma unroll 1
    for (std::int64_t chunk = first_chunk; chunk < chunks;
         chunk += std::int64_t{gridDim.y} * blockDim.x) {
      body(row, chunk);
    }
  }
}

}  // namespace shardwright::kernels::cuda
