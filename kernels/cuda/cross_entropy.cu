// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/grids.h"
#include "kernels/cuda/reduce.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kRowThreads = 512;

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

template <class T>
struct Arguments {
  host::Matrix<T> logits;
  const std::int32_t* targets;
  std::int32_t ignored;
  bool gradient;
  double* losses;
  float softcap;

  template <bool kCapped>
  __device__ float capped(float logit) const {
    return kCapped ? softcap * tanhf(logit / softcap) : logit;
  }
};

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

template <class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(Arguments<T> a) {
  constexpr int N = kWidth<T>;
  __shared__ SoftmaxPart shared[kRowThreads / 32];
  const auto cols = static_cast<int>(a.logits.cols);
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    T* logits = a.logits.data + row * a.logits.stride;
    const std::int32_t target = a.targets[row];
    if (target == a.ignored) {
      if (threadIdx.x == 0) a.losses[row] = 0.0;
      if (a.gradient) {
        along_row<N>(logits, cols, [&](int col, auto width) {
          const float zeros[width()] = {};
          store(logits + col, zeros);
        });
      }
      continue;
    }
    const bool valid = target >= 0 && target < cols;
    // Before any thread writes the gradient: the sums below are a barrier.
    float of_target[1] = {__uint_as_float(0x7fc00000u)};
    if (valid) load(logits + target, of_target);
    of_target[0] = a.template capped<kCapped>(of_target[0]);
    SoftmaxPart part{-INFINITY, 0.0f};
    along_row<N>(logits, cols, [&](int col, auto width) {
      float v[width()];
      load(logits + col, v);
      float top = part.top;
#pragma unroll
      for (int j = 0; j < width(); ++j) {
        v[j] = a.template capped<kCapped>(v[j]);
        top = fmaxf(top, v[j]);
      }
      // Above minus infinity, so that differences are numbers.
      const float base = fmaxf(top, -3.0e38f);
      float sum = part.sum * exponential<T>(part.top - base);
#pragma unroll
      for (int j = 0; j < width(); ++j) sum += exponential<T>(v[j] - base);
      part = {base, sum};
    });
    const SoftmaxPart all =
        block_reduce<kRowThreads>(part, static_cast<int>(threadIdx.x), shared, JoinParts<T>{});
    if (threadIdx.x == 0) {
      a.losses[row] = log(static_cast<double>(all.sum)) +
                      (static_cast<double>(all.top) - static_cast<double>(of_target[0]));
    }
    if (!a.gradient) continue;
    const float factor = 1.0f / all.sum;
    along_row<N>(logits, cols, [&](int col, auto width) {
      float v[width()];
      load(logits + col, v);
#pragma unroll
      for (int j = 0; j < width(); ++j) {
        const float logit = a.template capped<kCapped>(v[j]);
        v[j] = exponential<T>(logit - all.top) * factor;
        if (col + j == target) v[j] -= 1.0f;
        if constexpr (kCapped) {
          const float share = logit / a.softcap;
          v[j] *= 1.0f - share * share;
        }
      }
      store(logits + col, v);
    });
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_losses_kernel(const double* losses, const std::int32_t* targets, std::int32_t ignored,
                      std::int64_t rows, double* loss, std::int64_t* count) {
  __shared__ double shared_loss[kThreads / 32];
  __shared__ int shared_count[kThreads / 32];
  double sum = 0.0;
  int counted = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) {
    if (targets[row] == ignored) continue;
    sum += losses[row];
    ++counted;
  }
  const auto thread = static_cast<int>(threadIdx.x);
  sum = block_reduce<kThreads>(sum, thread, shared_loss, Plus{});
  counted = block_reduce<kThreads>(counted, thread, shared_count, Plus{});
  if (thread == 0) {
    *loss += sum;
    *count += counted;
  }
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                   std::int32_t ignored, bool gradient, double* loss, std::int64_t* count,
                   double* losses, double softcap) {
  if (logits.rows == 0) return;
  const Arguments<T> arguments{logits,   targets, ignored,
                               gradient, losses,  static_cast<float>(softcap)};
  const LaunchShape rows{blocks_for(logits.rows, 1), kRowThreads};
  if (softcap > 0) {
    launch(cross_entropy_kernel<T, true>, rows, stream, arguments);
  } else {
    launch(cross_entropy_kernel<T, false>, rows, stream, arguments);
  }
  launch(sum_losses_kernel, {1, kThreads}, stream, losses, targets, ignored, logits.rows, loss,
         count);
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void cross_entropy<T>(cudaStream_t, host::Matrix<T>, const std::int32_t*, std::int32_t, \
                                 bool, double*, std::int64_t*, double*, double);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)

}  // namespace shardwright::kernels::cuda
