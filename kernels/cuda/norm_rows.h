// SPDX-License-Identifier: Apache-2.0
// What the norms share: where their rows lie and how many threads work on one. For .cu files only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/grids.h"
#include "kernels/cuda/reduce.h"
#include "kernels/host/rows.h"

namespace shardwright::kernels::cuda {

using host::Rows;

/// Where row `row` begins.
__device__ __forceinline__ std::int64_t offset_of(const Rows& rows, std::int64_t row) {
  if (rows.heads == 1) return row * rows.stride;
  return row / rows.heads * rows.stride + row % rows.heads * rows.cols;
}

/// The sum over the kLanes threads of a row: some lanes of a warp, or the whole block.
template <int kLanes>
__device__ __forceinline__ float row_sum(float value, float* shared) {
  if constexpr (kLanes <= 32) {
    return warp_reduce<kLanes>(value, Plus{});
  } else {
    return block_reduce<kLanes>(value, static_cast<int>(threadIdx.x), shared, Plus{});
  }
}

/// Calls body(row, exists) for the rows of this thread, of which kLanes threads share each and a
/// block takes kThreads / kLanes at a time. Rows that do not exist are worked on as if they were
/// empty, because all lanes take part in sums.
template <int kLanes, class Body>
__device__ __forceinline__ void for_rows(const Rows& rows, Body&& body) {
  constexpr int kRows = kThreads / kLanes;
  const std::int64_t count = rows.tokens * rows.heads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < count;
       first += std::int64_t{gridDim.x} * kRows) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / kLanes;
    body(row, row < count);
  }
}

/// values += those at `from`, unless that is null; `room` is overwritten.
template <class T, int N>
__device__ __forceinline__ void add_chunk(const T* from, std::int64_t at, float (&room)[N],
                                          float (&values)[N]) {
  if (from == nullptr) return;
  load(from + at, room);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] += room[j];
}

/// Calls body(lanes) with the number of threads that a row of `chunks` chunks is worth.
template <class Body>
void with_lanes(std::int64_t chunks, Body&& body) {
  if (chunks <= 8) {
    body(std::integral_constant<int, 8>{});
  } else if (chunks <= 16) {
    body(std::integral_constant<int, 16>{});
  } else if (chunks <= 64) {
    body(std::integral_constant<int, 32>{});
  } else {
    body(std::integral_constant<int, kThreads>{});
  }
}

template <class T, class... Pointers>
bool is_wide(const Rows& rows, std::int64_t x_stride, const Pointers*... arrays) {
  return (rows.cols | rows.stride | x_stride) % kWidth<T> == 0 && aligned<kWidth<T>>(arrays...);
}

}  // namespace shardwright::kernels::cuda
