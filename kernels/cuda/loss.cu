// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <type_traits>

#include "kernels/arguments.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/loss.h"

namespace shardwright::kernels::cuda {
namespace {

// The softmax of a row by a block.

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

// Losses of whole rows.

template <class T>
struct CrossEntropyArguments {
  host::Matrix<T> logits;
  const std::int32_t* targets;
  std::int32_t ignored;
  bool gradient;
  double* losses;
  float softcap;
};

template <class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(CrossEntropyArguments<T> a) {
  constexpr int N = kWidth<T>;
  __shared__ SoftmaxPart shared[kRowThreads / 32];
  const auto cols = static_cast<int>(a.logits.cols);
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    T* logits = a.logits.data + row * a.logits.stride;
    const std::int32_t target = a.targets[row];
    if (target == a.ignored) {
      if (threadIdx.x == 0) a.losses[row] = 0.0;
      if (a.gradient) store_zeros<N>(logits, cols);
      continue;
    }
    const bool valid = target >= 0 && target < cols;
    // Before any thread writes the gradient: the sums below are a barrier.
    float of_target[1] = {__uint_as_float(0x7fc00000u)};
    if (valid) load(logits + target, of_target);
    of_target[0] = capped<kCapped>(of_target[0], a.softcap);
    SoftmaxPart part{-INFINITY, 0.0f};
    along_row<N>(logits, cols, [&](int col, auto width) {
      float v[width()];
      load(logits + col, v);
      take_logits<T, kCapped>(v, a.softcap, part);
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
      turn_into_gradient<T, kCapped>(v, col, target, all.top, factor, a.softcap);
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

/// *loss += the sum of the losses of rows that are not ignored, in fp64 and a fixed order; *count
/// += their number.
void add_cross_entropy(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                       std::int32_t ignored, std::int64_t rows, double* loss, std::int64_t* count) {
  launch(sum_losses_kernel, {1, kThreads}, stream, losses, targets, ignored, rows, loss, count);
}

// Losses of rows in parts.

template <class T>
struct PartArguments {
  host::Matrix<T> logits;
  const std::int32_t* targets;
  std::int32_t ignored;
  std::int64_t first_vocab;
  float softcap;
};

/// The place of the row's target among the part's columns, or -1.
template <class T>
__device__ __forceinline__ int target_column(const PartArguments<T>& a, std::int64_t row) {
  const std::int64_t column = a.targets[row] - a.first_vocab;
  return column >= 0 && column < a.logits.cols ? static_cast<int>(column) : -1;
}

/// Calls body(values) with every column of a row once: chunks, whose columns do not depend on where
/// the row begins, then single ones.
template <int N, class T, class Body>
__device__ __forceinline__ void along_columns(const T* row, int cols, Body body) {
  const auto thread = static_cast<int>(threadIdx.x);
  const bool wide = unaligned_elements<N>(row) == 0;
  const int chunks = cols / N;
  for (int chunk = thread; chunk < chunks; chunk += kRowThreads) {
    float v[N];
    if (wide) {
      load(row + chunk * N, v);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float one[1];
        load(row + chunk * N + j, one);
        v[j] = one[0];
      }
    }
    body(v);
  }
  if (thread < cols - chunks * N) {
    float v[1];
    load(row + chunks * N + thread, v);
    body(v);
  }
}

template <class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads)
    vocabulary_statistics_kernel(PartArguments<const T> a, VocabularyPart* parts) {
  __shared__ SoftmaxPart shared[kRowThreads / 32];
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    if (a.targets[row] == a.ignored) {
      if (threadIdx.x == 0) parts[row] = {kLowestMaximum, 0.0f, -0.0f};
      continue;
    }
    const T* logits = a.logits.data + row * a.logits.stride;
    SoftmaxPart part{-INFINITY, 0.0f};
    along_columns<kWidth<T>>(logits, static_cast<int>(a.logits.cols),
                             [&](auto& v) { take_logits<T, kCapped>(v, a.softcap, part); });
    const SoftmaxPart all =
        block_reduce<kRowThreads>(part, static_cast<int>(threadIdx.x), shared, JoinParts<T>{});
    if (threadIdx.x != 0) continue;
    const int column = target_column(a, row);
    float target = -0.0f;
    if (column >= 0) {
      float of_target[1];
      load(logits + column, of_target);
      target = capped<kCapped>(of_target[0], a.softcap) + 0.0f;
    }
    parts[row] = {fmaxf(all.top, kLowestMaximum), all.sum, target};
  }
}

__device__ __forceinline__ VocabularyPart merged(const VocabularyParts& parts, std::int64_t row) {
  const VocabularyPart* part = parts.data + row;
  float top = part->maximum;
  for (std::int64_t p = 1; p < parts.count; ++p) top = fmaxf(top, part[p * parts.stride].maximum);
  VocabularyPart all{top, 0.0f, -0.0f};
  for (std::int64_t p = 0; p < parts.count; ++p) {
    const VocabularyPart one = part[p * parts.stride];
    // Apart, so that the compiler does not fuse what depends on the number of parts.
    all.exponents = __fadd_rn(all.exponents, __fmul_rn(one.exponents, expf(one.maximum - top)));
    all.target += one.target;
  }
  return all;
}

__global__ void __launch_bounds__(kThreads)
    vocabulary_losses_kernel(const std::int32_t* targets, std::int64_t rows, std::int32_t ignored,
                             VocabularyParts parts, double* losses) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  if (targets[row] == ignored) {
    losses[row] = 0.0;
    return;
  }
  const VocabularyPart all = merged(parts, row);
  const bool found = __float_as_uint(all.target) != 0x80000000u;
  const float target = found ? all.target : __uint_as_float(0x7fc00000u);
  losses[row] = log(static_cast<double>(all.exponents)) +
                (static_cast<double>(all.maximum) - static_cast<double>(target));
}

/// Blocks of a multiprocessor: left to itself, the compiler spills registers of the capped form.
template <bool kCapped>
inline constexpr int kGradientBlocks = kCapped ? 2 : 3;

template <class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads, kGradientBlocks<kCapped>)
    vocabulary_gradient_kernel(PartArguments<T> a, VocabularyParts parts) {
  constexpr int N = kWidth<T>;
  const auto cols = static_cast<int>(a.logits.cols);
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    T* logits = a.logits.data + row * a.logits.stride;
    if (a.targets[row] == a.ignored) {
      store_zeros<N>(logits, cols);
      continue;
    }
    const int target = target_column(a, row);
    const VocabularyPart all = merged(parts, row);
    const float factor = 1.0f / all.exponents;
    along_row<N>(logits, cols, [&](int col, auto width) {
      float v[width()];
      load(logits + col, v);
      turn_into_gradient<T, kCapped>(v, col, target, all.maximum, factor, a.softcap);
      store(logits + col, v);
    });
  }
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                   std::int32_t ignored, bool gradient, double* loss, std::int64_t* count,
                   double* losses, double softcap) {
  if (logits.rows == 0) return;
  const CrossEntropyArguments<T> arguments{logits,   targets, ignored,
                                           gradient, losses,  static_cast<float>(softcap)};
  const LaunchShape rows{blocks_for(logits.rows, 1), kRowThreads};
  if (softcap > 0) {
    launch(cross_entropy_kernel<T, true>, rows, stream, arguments);
  } else {
    launch(cross_entropy_kernel<T, false>, rows, stream, arguments);
  }
  add_cross_entropy(stream, losses, targets, ignored, logits.rows, loss, count);
}

template <class T>
void vocabulary_statistics(cudaStream_t stream, host::Matrix<const T> logits,
                           const std::int32_t* targets, std::int32_t ignored,
                           std::int64_t first_vocab, VocabularyPart* parts, double softcap) {
  if (logits.rows == 0) return;
  const PartArguments<const T> arguments{logits, targets, ignored, first_vocab,
                                         static_cast<float>(softcap)};
  const LaunchShape rows{blocks_for(logits.rows, 1), kRowThreads};
  if (softcap > 0) {
    launch(vocabulary_statistics_kernel<T, true>, rows, stream, arguments, parts);
  } else {
    launch(vocabulary_statistics_kernel<T, false>, rows, stream, arguments, parts);
  }
}

void vocabulary_losses(cudaStream_t stream, const std::int32_t* targets, std::int64_t rows,
                       std::int32_t ignored, const VocabularyParts& parts, double* loss,
                       std::int64_t* count, double* losses) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  launch(vocabulary_losses_kernel, {blocks, kThreads}, stream, targets, rows, ignored, parts,
         losses);
  add_cross_entropy(stream, losses, targets, ignored, rows, loss, count);
}

template <class T>
void vocabulary_gradient(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                         std::int32_t ignored, std::int64_t first_vocab,
                         const VocabularyParts& parts, double softcap) {
  if (logits.rows == 0) return;
  const PartArguments<T> arguments{logits, targets, ignored, first_vocab,
                                   static_cast<float>(softcap)};
  const LaunchShape rows{blocks_for(logits.rows, 1), kRowThreads};
  if (softcap > 0) {
    launch(vocabulary_gradient_kernel<T, true>, rows, stream, arguments, parts);
  } else {
    launch(vocabulary_gradient_kernel<T, false>, rows, stream, arguments, parts);
  }
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void cross_entropy<T>(cudaStream_t, host::Matrix<T>, const std::int32_t*, std::int32_t, \
                                 bool, double*, std::int64_t*, double*, double);                   \
  template void vocabulary_statistics<T>(cudaStream_t, host::Matrix<const T>, const std::int32_t*, \
                                         std::int32_t, std::int64_t, VocabularyPart*, double);     \
  template void vocabulary_gradient<T>(cudaStream_t, host::Matrix<T>, const std::int32_t*,         \
                                       std::int32_t, std::int64_t, const VocabularyParts&,         \
                                       double);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
