// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/softmax_rows.h"

namespace shardwright::kernels::cuda {
namespace {

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

void add_cross_entropy(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                       std::int32_t ignored, std::int64_t rows, double* loss, std::int64_t* count) {
  launch(sum_losses_kernel, {1, kThreads}, stream, losses, targets, ignored, rows, loss, count);
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void cross_entropy<T>(cudaStream_t, host::Matrix<T>, const std::int32_t*, std::int32_t, \
                                 bool, double*, std::int64_t*, double*, double);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
