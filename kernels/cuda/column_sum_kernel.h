// SPDX-License-Identifier: Apache-2.0
// The first half of a sum over rows: partial sums of blocks of rows. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/access.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/grids.h"

namespace shardwright::kernels::cuda {

/// partial[b, cols] = the sum of the rows of block b. A thread sums every blockDim.y-th row of
/// kN columns, which rows.at<N>(row, chunk, values) adds to `values`; then the threads of a column
/// are added up in ascending order. Grid: column tiles, kColumnSumBlocks.
template <int N, class Rows>
__global__ void __launch_bounds__(kThreads, 4)
    column_sum_kernel(Rows rows, std::int64_t row_count, std::int64_t cols, float* partial) {
  float* shared = dynamic_shared<float>();  // [blockDim.y, blockDim.x, N]
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool inside = chunk * N < cols;
  const std::int64_t end = row_count * (blockIdx.y + 1) / kColumnSumBlocks;
  float sum[N];
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = 0.0f;
  if (inside) {
    for (std::int64_t row = row_count * blockIdx.y / kColumnSumBlocks + threadIdx.y; row < end;
         row += blockDim.y) {
      rows.template add<N>(row, chunk, sum);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[(threadIdx.y * blockDim.x + threadIdx.x) * N + j] = sum[j];
  __syncthreads();
  const auto width = static_cast<std::int64_t>(blockDim.x) * N;
  for (std::int64_t col = threadIdx.y * blockDim.x + threadIdx.x; col < width; col += kThreads) {
    const std::int64_t global = std::int64_t{blockIdx.x} * width + col;
    if (global >= cols) break;
    float total = shared[col];
    for (unsigned y = 1; y < blockDim.y; ++y) total += shared[y * width + col];
    partial[blockIdx.y * cols + global] = total;
  }
}

template <int N, class Rows>
void launch_column_sums(cudaStream_t stream, const Rows& rows, std::int64_t row_count,
                        std::int64_t cols, float* partial,
                        std::source_location where = std::source_location::current()) {
  const std::int64_t chunks = (cols + N - 1) / N;
  unsigned lanes = 1;
  while (lanes < 32 && lanes < chunks) lanes *= 2;
  const auto tiles = static_cast<unsigned>((chunks + lanes - 1) / lanes);
  launch(column_sum_kernel<N, Rows>,
         {dim3(tiles, kColumnSumBlocks), dim3(lanes, kThreads / lanes),
          sizeof(float) * kThreads * N, where},
         stream, rows, row_count, cols, partial);
}

}  // namespace shardwright::kernels::cuda
