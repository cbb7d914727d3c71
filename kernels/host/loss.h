// SPDX-License-Identifier: Apache-2.0
// The loss of a chunk of tokens, from their logits, in fp32; and of tokens whose logits lie in
// parts, by columns, on several ranks or on one (VocabularyPart): first what each part tells of its
// rows, then, from all that, the loss and the gradient of a part's logits. With one part loss and
// gradient have the bits of cross_entropy.
#pragma once

#include <span>

#include "kernels/arguments.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

struct LmLoss {
  double sum = 0;          // of -log p(target), natural logarithm, over counted tokens in order
  std::int64_t count = 0;  // tokens whose target is not ignored
};

/// The loss of logits[n, vocab] without gaps between rows. With `gradient` the logits become the
/// gradient of the sum; `losses` has an element a row. Throws Error when a target is neither a
/// token nor kIgnoreTarget. With a `softcap` logits are softcap * tanh(logit / softcap) first, and
/// the gradient is that of logits before it.
LmLoss cross_entropy(Parallel& parallel, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient, std::span<double> losses,
                     double softcap = 0);

/// Of rows whose losses are known.
LmLoss sum_of_losses(std::span<const double> losses, std::span<const std::int32_t> targets);

/// Of logits [n, columns] of the tokens from `first_vocab` on. A softcap is applied in place:
/// vocabulary_loss takes the logits as they are left.
void vocabulary_statistics(Parallel& parallel, Matrix<float> logits,
                           std::span<const std::int32_t> targets, std::int64_t first_vocab,
                           std::span<VocabularyPart> parts, double softcap = 0);

/// The loss of all rows; no rows are counted where `losses`, which else has an element a row, is
/// empty. With `gradient` the part's logits become the gradient of the sum. Throws Error for a
/// target that no part has.
LmLoss vocabulary_loss(Parallel& parallel, Matrix<float> logits,
                       std::span<const std::int32_t> targets, std::int64_t first_vocab,
                       const VocabularyParts& parts, bool gradient, std::span<double> losses,
                       double softcap = 0);

}  // namespace shardwright::kernels::host
