// SPDX-License-Identifier: Apache-2.0
// The language-model head fused with softmax cross-entropy, a chunk of tokens at a time.
//
// The logits of all tokens would be the largest tensor of the step, so only those of one chunk
// exist at a time: logits = hidden W^T, their softmax, the loss, and at once the gradients of the
// hidden states and of the weight. Chunks follow in ascending order and a chunk's weight gradient
// is added to that of the chunks before it (rounded to G after each); all arithmetic on logits is
// fp32. The chunk's size thereby belongs to the definition of the result.
#pragma once

#include <span>

#include "kernels/bf16.h"
#include "kernels/host/matrix.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

struct LmLoss {
  double sum = 0;          // of -log p(target), natural logarithm, over counted tokens in order
  std::int64_t count = 0;  // tokens whose target is not ignored
};

inline constexpr std::int32_t kIgnoreTarget = -100;

struct LmHeadOptions {
  std::int64_t chunk = 256;  // tokens whose logits exist at a time
  double grad_scale = 1.0;   // d loss / d (sum of token losses): 1 / tokens for a mean
  std::int32_t ignore_index = kIgnoreTarget;
};

/// Bytes of the workspace: fp32 logits and fp64 losses of one chunk.
constexpr std::int64_t lm_head_workspace_bytes(std::int64_t chunk, std::int64_t vocab) {
  return chunk * (vocab * 4 + 8);
}

/// The loss of whole rows of logits, without gaps between rows. With `gradient` the logits become
/// the gradient of grad_scale * loss; `losses` has an element a row. Throws Error when a target is
/// neither a token nor ignore_index.
LmLoss cross_entropy(Parallel& parallel, const LmHeadOptions& options, Matrix<float> logits,
                     std::span<const std::int32_t> targets, bool gradient,
                     std::span<double> losses);

/// Loss only, for evaluation. hidden[n, C], w[V, C]; the workspace is aligned to 8 bytes.
template <class T>
LmLoss lm_head_loss(Parallel& parallel, const LmHeadOptions& options, Matrix<const T> hidden,
                    Matrix<const T> w, std::span<const std::int32_t> targets,
                    std::span<std::byte> workspace);

/// Loss, d_hidden[n, C] and d_w[V, C], both overwritten. d_hidden may be hidden. Throws Error when
/// a target is neither a token nor ignore_index.
template <class T, class G>
LmLoss lm_head_backward(Parallel& parallel, const LmHeadOptions& options, Matrix<const T> hidden,
                        Matrix<const T> w, std::span<const std::int32_t> targets,
                        Matrix<T> d_hidden, Matrix<G> d_w, std::span<std::byte> workspace);

}  // namespace shardwright::kernels::host
