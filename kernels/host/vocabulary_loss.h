// SPDX-License-Identifier: Apache-2.0
// The loss of tokens whose logits lie in parts, by columns, on several ranks or on one
// (kernels/arguments.h): first what each part tells of its rows, then, from all that, the
// loss and the gradient of a part's logits. With one part loss and gradient have the bits of
// kernels/host/cross_entropy.h.
#pragma once

#include <span>

#include "kernels/arguments.h"
#include "kernels/host/cross_entropy.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

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
