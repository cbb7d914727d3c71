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
