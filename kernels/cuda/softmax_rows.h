// SPDX-License-Identifier: Apache-2.0
// What losses share: the softmax of a row by a block. For .cu files only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/arguments.h"
#include "kernels/cuda/grids.h"
#include "kernels/cuda/reduce.h"

namespace shardwright::kernels::cuda {

inline constexpr int kRowThreads = 512;

/// The largest of some numbers and the sum of e^(x - top) over them.
struct SoftmaxPart {
  float top;
  float sum;
};

template <class T>
struct JoinParts {
  __device__ SoftmaxPart operator()(SoftmaxPart a, SoftmaxPart b) const {
    const float top = fmaxf(a.top, b.top);
    if (top == -INFINITY) return a.sum != a.sum ? a : b;  // nothing yet, unless a NaN
    return {top, a.sum * exponential<T>(a.top - top) + b.sum * exponential<T>(b.top - top)};
  }
};

template <bool kCapped>
__device__ __forceinline__ float capped(float logit, float softcap) {
  return kCapped ? softcap * tanhf(logit / softcap) : logit;
}

/// Takes some logits into a part; they are left capped.
template <class T, bool kCapped, int N>
__device__ __forceinline__ void take_logits(float (&v)[N], float softcap, SoftmaxPart& part) {
  float top = part.top;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    v[j] = capped<kCapped>(v[j], softcap);
    top = fmaxf(top, v[j]);
  }
  // Above minus infinity, so that differences are numbers.
  const float base = fmaxf(top, kLowestMaximum);
  float sum = part.sum * exponential<T>(part.top - base);
#pragma unroll
  for (int j = 0; j < N; ++j) sum += exponential<T>(v[j] - base);
  part = {base, sum};
}

/// Turns logits at `column` of a row with this softmax into their gradient.
template <class T, bool kCapped, int N>
__device__ __forceinline__ void turn_into_gradient(float (&v)[N], int column, int target, float top,
                                                   float factor, float softcap) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float logit = capped<kCapped>(v[j], softcap);
    v[j] = exponential<T>(logit - top) * factor;
    if (column + j == target) v[j] -= 1.0f;
    if constexpr (kCapped) {
      const float share = logit / softcap;
      v[j] *= 1.0f - share * share;
    }
  }
}

/// Elements before the first one at a multiple of 16 bytes: rows of an odd length begin anywhere.
template <int N, class T>
__device__ __forceinline__ int unaligned_elements(const T* row) {
  const auto elements = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % N);
  return (N - elements) % N;
}

/// Calls body(column, width) along a row: chunks from an aligned address on, single elements before
/// and after.
template <int N, class T, class Body>
__device__ __forceinline__ void along_row(const T* row, int cols, Body body) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int before = unaligned_elements<N>(row);
  const int head = before < cols ? before : cols;
  const int chunks = (cols - head) / N;
  if (thread < head) body(thread, std::integral_constant<int, 1>{});
  for (int chunk = thread; chunk < chunks; chunk += kRowThreads) {
    body(head + chunk * N, std::integral_constant<int, N>{});
  }
  const int tail = head + chunks * N;
  if (thread < cols - tail) body(tail + thread, std::integral_constant<int, 1>{});
}

template <int N, class T>
__device__ __forceinline__ void store_zeros(T* row, int cols) {
  along_row<N>(row, cols, [&](int col, auto width) {
    const float zeros[width()] = {};
    store(row + col, zeros);
  });
}

/// *loss += the sum of the losses of rows that are not ignored, in fp64 and a fixed order; *count
/// += their number. In cross_entropy.cu.
void add_cross_entropy(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                       std::int32_t ignored, std::int64_t rows, double* loss, std::int64_t* count);

}  // namespace shardwright::kernels::cuda
