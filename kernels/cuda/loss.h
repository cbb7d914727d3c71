// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy on CUDA: the loss of rows of logits, which become their own gradient; and
// of logits that lie in parts, by columns, on several ranks or on one (VocabularyPart). With one
// part whose rows begin at multiples of 16 bytes loss and gradient have the bits of cross_entropy;
// those of several parts do not depend on where rows begin.
#pragma once

#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/bf16.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// Adds -log softmax(logits)[target] over the rows to *loss, in fp64 and a fixed order, and the
/// number of rows that count to *count. With `gradient` the logits become the gradient of that sum,
/// zero in rows whose target is `ignored`. A target that is neither a column nor ignored makes the
/// loss NaN. `losses` has an element a row; loss and count are in device memory. The row is read
/// twice and written once. With a `softcap` logits are softcap * tanh(logit / softcap) first, and
/// the gradient is that of logits before it.
template <class T>
void cross_entropy(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                   std::int32_t ignored, bool gradient, double* loss, std::int64_t* count,
                   double* losses, double softcap = 0);

/// What the part with the tokens from `first_vocab` on tells of each row. The row is read once.
template <class T>
void vocabulary_statistics(cudaStream_t stream, host::Matrix<const T> logits,
                           const std::int32_t* targets, std::int32_t ignored,
                           std::int64_t first_vocab, VocabularyPart* parts, double softcap = 0);

/// Adds the losses of the rows to *loss, in fp64 and a fixed order, and the number of rows that
/// count to *count. A target that no part has makes the loss NaN. `losses` has an element a row;
/// everything is in device memory.
void vocabulary_losses(cudaStream_t stream, const std::int32_t* targets, std::int64_t rows,
                       std::int32_t ignored, const VocabularyParts& parts, double* loss,
                       std::int64_t* count, double* losses);

/// The part's logits become the gradient of the sum of losses, zero in rows that are ignored. The
/// row is read and written once.
template <class T>
void vocabulary_gradient(cudaStream_t stream, host::Matrix<T> logits, const std::int32_t* targets,
                         std::int32_t ignored, std::int64_t first_vocab,
                         const VocabularyParts& parts, double softcap = 0);

}  // namespace shardwright::kernels::cuda
