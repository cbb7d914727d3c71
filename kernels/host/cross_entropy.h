// SPDX-License-Identifier: Apache-2.0
// The loss of a chunk of tokens, from their logits, in fp32.
#pragma once

#include <span>

#include "kernels/arguments.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

struct LmLoss {
  double sum = 0;          // of -log p(target), natural logarithm, over counted tokens in order
  std::int64_t count = 0;  // tokens whose target is not ignored
};

inline constexpr std::int32_t kIgnoreTarget = -100;

/// The loss of logits[n, vocab] without gaps between rows. With `gradient` the logits become the
/// gradient of the sum; `losses` has an element a row. Throws Error when a target is neither a
/// token nor kIgnoreTarget. With a `softcap` logits are softcap * tanh(logit / softcap) first, and
/// the gradient is that of logits before it.
LmLoss cross_entropy(Parallel& parallel, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient, std::span<double> losses,
                     double softcap = 0);

/// Of rows whose losses are known.
LmLoss sum_of_losses(std::span<const double> losses, std::span<const std::int32_t> targets);

}  // namespace shardwright::kernels::host
