// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/cross_entropy.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::kernels::host {
namespace {

void check_targets(std::span<const std::int32_t> targets, std::int64_t vocab) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != kIgnoreTarget && (targets[i] < 0 || targets[i] >= vocab)) {
      throw Error(fmt::format("target {} of the batch is {}, expected 0 to {} or {}", i, targets[i],
                              vocab - 1, kIgnoreTarget));
    }
  }
}

}  // namespace

LmLoss cross_entropy(Parallel& parallel, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient, std::span<double> losses,
                     double softcap) {
  SHARDWRIGHT_CHECK(logits.rows == std::ssize(targets) && logits.rows <= std::ssize(losses) &&
                        logits.stride == logits.cols,
                    "loss of [{}, {}] on {} targets", logits.rows, logits.cols, targets.size());
  check_targets(targets, logits.cols);
  const Kernels& kernels = parallel.kernels();
  const CrossEntropyRows args{.logits = logits.data,
                              .targets = targets.data(),
                              .ignore_index = kIgnoreTarget,
                              .vocab = logits.cols,
                              .gradient = gradient,
                              .softcap = static_cast<float>(softcap),
                              .losses = losses.data()};
  parallel.for_ranges(logits.rows, std::max<std::int64_t>(1, 8192 / logits.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.cross_entropy(args, begin, end);
                      });
  return sum_of_losses(losses, targets);
}

LmLoss sum_of_losses(std::span<const double> losses, std::span<const std::int32_t> targets) {
  LmLoss loss;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnoreTarget) continue;
    loss.sum += losses[i];
    ++loss.count;
  }
  return loss;
}

}  // namespace shardwright::kernels::host
