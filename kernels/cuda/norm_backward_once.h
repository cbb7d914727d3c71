// SPDX-License-Identifier: Apache-2.0
// The gradient of a norm over long rows, reading each row once. For .cu files only.
//
// A row lies in the registers of a block while its sums are taken, and the gradient of the weight
// grows beside it: a block walks over neighbouring rows and leaves one partial sum of their
// gradients, so that the input and its gradient come from memory once, not three times. Rows that
// do not fit (more than 8192 elements), that are too short for a block or not aligned take the
// kernels of rmsnorm.cu and layernorm.cu, in two passes.
//
// The number of partial sums depends on the shape alone, so equal inputs give equal bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/norm_rows.h"

namespace shardwright::kernels::cuda {

template <class T>
struct NormBackward {
  Rows rows, x_rows;
  const T* x;
  const T* weight;
  float offset;
  const float* rstd;
  const float* mean;  // null: the norm does not centre its rows
  const T* d_y;
  const T* d_residual;
  T* d_x;
};

// With n = (x - mean) rstd and g = dy (w + offset): dx = rstd (g - mean(g) - n mean(g n)) and
// dw = sum of dy n; without centring mean and mean(g) are 0.
template <class T, int kChunks, bool kCentred>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_once_kernel(NormBackward<T> a, float* partial) {
  constexpr int N = kWidth<T>;
  __shared__ float shared[kThreads / 32];
  const auto cols = static_cast<int>(a.rows.cols);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t count = a.rows.tokens * a.rows.heads;
  const std::int64_t end = count * (blockIdx.x + 1) / gridDim.x;
  float sum[kChunks][N];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum[c][j] = 0.0f;
  }
  for (std::int64_t row = count * blockIdx.x / gridDim.x; row < end; ++row) {
    const std::int64_t at = offset_of(a.rows, row), x_at = offset_of(a.x_rows, row);
    const float rstd = a.rstd[row];
    const float mean = kCentred ? a.mean[row] : 0.0f;
    uint4 kept_x[kChunks], kept_d[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i < cols) {
        kept_x[c] = load_word<uint4>(a.x + x_at + i);
        kept_d[c] = load_word<uint4>(a.d_y + at + i);
      }
    }
    float gradients = 0.0f, products = 0.0f, x[N], w[N], d[N];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i >= cols) continue;
      unpack<T>(kept_x[c], x);
      unpack<T>(kept_d[c], d);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normal = (x[j] - mean) * rstd, gradient = d[j] * (w[j] + a.offset);
        if constexpr (kCentred) gradients += gradient;
        products = __fmaf_rn(gradient, normal, products);
        sum[c][j] = __fmaf_rn(d[j], normal, sum[c][j]);
      }
    }
    float of_gradients = 0.0f;
    if constexpr (kCentred) {
      of_gradients = row_sum<kThreads>(gradients, shared) / static_cast<float>(cols);
    }
    const float of_products = row_sum<kThreads>(products, shared) / static_cast<float>(cols);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i >= cols) continue;
      unpack<T>(kept_x[c], x);
      unpack<T>(kept_d[c], d);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = d[j] * (w[j] + a.offset) - of_gradients;
        d[j] = __fmaf_rn((x[j] - mean) * rstd, -of_products, gradient) * rstd;
      }
      add_chunk(a.d_residual, at + i, w, d);
      store(a.d_x + at + i, d);
    }
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int i = (thread + c * kThreads) * N;
    if (i < cols) store(partial + blockIdx.x * a.rows.cols + i, sum[c]);
  }
}

/// Partial sums that the kernel leaves; 0: the rows are not its. The workspace holds
/// norm_workspace_floats(rows, cols) floats and is aligned to 16 bytes.
template <class T>
std::int64_t norm_blocks(const NormBackward<T>& a, const float* workspace) {
  constexpr int N = kWidth<T>;
  constexpr std::int64_t kMostElements = 8192;
  const std::int64_t chunks = a.rows.cols / N;
  const bool wide = is_wide<T>(a.rows, a.x_rows.stride, a.x, a.weight, a.d_y, a.d_residual,
                               static_cast<const T*>(a.d_x)) &&
                    aligned<N>(workspace);
  if (!wide || chunks <= 64 || a.rows.cols > kMostElements) return 0;
  return std::min(a.rows.count(), kNormRowBlocks);
}

/// Runs it, where norm_blocks says so.
template <bool kCentred, class T>
void launch_norm_backward_once(cudaStream_t stream, const NormBackward<T>& a, std::int64_t blocks,
                               float* workspace,
                               std::source_location where = std::source_location::current()) {
  const std::int64_t chunks = a.rows.cols / kWidth<T>;
  const auto with = [&](auto of_thread) {
    launch(norm_backward_once_kernel<T, of_thread(), kCentred>,
           {dim3(static_cast<unsigned>(blocks)), kThreads, 0, where}, stream, a, workspace);
  };
  if (chunks <= kThreads) {
    with(std::integral_constant<int, 1>{});
  } else if (chunks <= 2 * kThreads) {
    with(std::integral_constant<int, 2>{});
  } else if (chunks <= 4 * kThreads) {
    with(std::integral_constant<int, 4>{});
  } else if constexpr (std::is_same_v<T, float>) {
    with(std::integral_constant<int, 8>{});
  }
}

}  // namespace shardwright::kernels::cuda
