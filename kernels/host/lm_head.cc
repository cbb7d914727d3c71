// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/lm_head.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/host/matmul.h"
#include "kernels/host/simd/kernels.h"
#include "sim/core/check.h"
#include "sim/core/error.h"

namespace shardwright::kernels::host {
namespace {

void check_targets(std::span<const std::int32_t> targets, std::int64_t vocab,
                   std::int32_t ignore_index) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != ignore_index && (targets[i] < 0 || targets[i] >= vocab)) {
      throw Error(fmt::format("target {} of the batch is {}, expected 0 to {} or {}", i, targets[i],
                              vocab - 1, ignore_index));
    }
  }
}

/// Walks over the chunks; gradients(first, logits) runs after a chunk's logits became gradients.
template <class T, class Gradients>
LmLoss for_chunks(Parallel& parallel, const LmHeadOptions& options, Matrix<const T> hidden,
                  Matrix<const T> w, std::span<const std::int32_t> targets,
                  std::span<std::byte> workspace, bool gradient, Gradients gradients) {
  SHARDWRIGHT_CHECK(hidden.rows == std::ssize(targets) && hidden.cols == w.cols &&
                        options.chunk > 0 &&
                        std::ssize(workspace) >=
                            lm_head_workspace_bytes(std::min(options.chunk, hidden.rows), w.rows),
                    "head of [{}, {}] on {} targets", hidden.rows, hidden.cols, targets.size());
  const std::int64_t largest_chunk = std::min(options.chunk, hidden.rows);
  auto* losses = reinterpret_cast<double*>(workspace.data());
  auto* buffer = reinterpret_cast<float*>(losses + largest_chunk);

  LmLoss loss;
  for (std::int64_t first = 0; first < hidden.rows; first += options.chunk) {
    const std::int64_t count = std::min(options.chunk, hidden.rows - first);
    const Matrix<float> logits(buffer, count, w.rows);
    matmul<T, T, float>(parallel, Layout::kNT, hidden.rows_from(first, count), w, logits);
    const LmLoss part = cross_entropy(
        parallel, options, logits,
        targets.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), gradient,
        {losses, static_cast<std::size_t>(count)});
    loss.sum += part.sum;
    loss.count += part.count;
    gradients(first, logits);
  }
  return loss;
}

}  // namespace

LmLoss cross_entropy(Parallel& parallel, const LmHeadOptions& options, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient,
                     std::span<double> losses) {
  SHARDWRIGHT_CHECK(logits.rows == std::ssize(targets) && logits.rows <= std::ssize(losses) &&
                        logits.stride == logits.cols,
                    "loss of [{}, {}] on {} targets", logits.rows, logits.cols, targets.size());
  check_targets(targets, logits.cols, options.ignore_index);
  const Kernels& kernels = parallel.kernels();
  const CrossEntropyRows args{.logits = logits.data,
                              .targets = targets.data(),
                              .ignore_index = options.ignore_index,
                              .vocab = logits.cols,
                              .grad_scale = static_cast<float>(options.grad_scale),
                              .gradient = gradient,
                              .losses = losses.data()};
  parallel.for_ranges(logits.rows, std::max<std::int64_t>(1, 8192 / logits.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.cross_entropy(args, begin, end);
                      });
  LmLoss loss;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == options.ignore_index) continue;
    loss.sum += losses[i];
    ++loss.count;
  }
  return loss;
}

template <class T>
LmLoss lm_head_loss(Parallel& parallel, const LmHeadOptions& options, Matrix<const T> hidden,
                    Matrix<const T> w, std::span<const std::int32_t> targets,
                    std::span<std::byte> workspace) {
  return for_chunks(parallel, options, hidden, w, targets, workspace, false,
                    [](std::int64_t, Matrix<const float>) {});
}

template <class T, class G>
LmLoss lm_head_backward(Parallel& parallel, const LmHeadOptions& options, Matrix<const T> hidden,
                        Matrix<const T> w, std::span<const std::int32_t> targets,
                        Matrix<T> d_hidden, Matrix<G> d_w, std::span<std::byte> workspace) {
  return for_chunks(parallel, options, hidden, w, targets, workspace, true,
                    [&](std::int64_t first, Matrix<const float> d_logits) {
                      const Matrix<const T> x = hidden.rows_from(first, d_logits.rows);
                      matmul<float, T, G>(parallel, Layout::kTN, d_logits, x, d_w,
                                          first == 0 ? Store::kOverwrite : Store::kAdd);
                      // Last, because it may overwrite x.
                      matmul<float, T, T>(parallel, Layout::kNN, d_logits, w,
                                          d_hidden.rows_from(first, d_logits.rows));
                    });
}

#define SHARDWRIGHT_INSTANTIATE_PAIR(T, G)                                                 \
  template LmLoss lm_head_backward<T, G>(Parallel&, const LmHeadOptions&, Matrix<const T>, \
                                         Matrix<const T>, std::span<const std::int32_t>,   \
                                         Matrix<T>, Matrix<G>, std::span<std::byte>);
SHARDWRIGHT_INSTANTIATE_PAIR(float, float)
SHARDWRIGHT_INSTANTIATE_PAIR(float, BFloat16)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, float)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, BFloat16)
#define SHARDWRIGHT_INSTANTIATE(T)                                                  \
  template LmLoss lm_head_loss<T>(Parallel&, const LmHeadOptions&, Matrix<const T>, \
                                  Matrix<const T>, std::span<const std::int32_t>,   \
                                  std::span<std::byte>);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
