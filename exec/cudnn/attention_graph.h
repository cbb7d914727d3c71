// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention as operation graphs, in the shape that cuDNN's fused engines
// recognise. The order of operations is part of that shape: the mask follows the scale in forward
// and the subtraction of the statistics in backward.
#pragma once

#include "exec/cudnn/graph.h"
#include "kernels/cuda/attention.h"

namespace shardwright::exec::cudnn {

/// The arrays of both graphs. From kScale on they are numbers in host memory.
enum AttentionUid : Uid {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kDelta,       // fp32 [B, H, T]: the sums over D of out times its gradient
  kQueryTotal,  // fp32 [B, H, T, D]: where blocks of keys add their parts of dQ
  // Of packed documents, where they begin (kernels/cuda/attention.h) and how long they are.
  kQueryBegins,
  kKeyBegins,
  kOutBegins,
  kRowBegins,
  kLengths,
  // Of packed documents and grouped heads, bf16 [tokens, group, ...]: before the sum over a group.
  kEveryKeyGradient,
  kEveryValueGradient,
  kSlopes,  // fp32, one for each head, 16 bytes apart, so that every slice begins aligned
  kScale,
  kMasked,  // the score of what a query does not see
  kBeyond,  // and of what lies beyond a document
  kOne,
  kCap,  // of scores that go to the softmax as cap * tanh(score / cap)
  kInverseCap
};

/// Elements from token to token.
struct RowStrides {
  std::int64_t query = 0, key = 0;  // of query heads, of key and value heads, and their gradients
  std::int64_t out = 0;             // and its gradient
  std::int64_t rows = 0;            // of documents' statistics and delta, which lie [tokens, H]
};
/// Of packed heads.
inline RowStrides row_strides(const kernels::cuda::AttentionProblem& problem) {
  return {problem.packed_stride, problem.packed_stride, problem.out_stride, problem.shape.heads};
}

/// 14 operations: the scores, their softmax, the output and the statistics; three more with a cap,
/// five with slopes, and six with documents, which are the entries of the batch then.
Graph attention_forward_graph(const kernels::cuda::AttentionProblem& problem);
Graph attention_forward_graph(const kernels::cuda::AttentionProblem& problem,
                              const RowStrides& strides);

inline constexpr std::int64_t kSlopeStride = 4;

/// How dQ comes together from the blocks of keys.
enum class QueryGradient {
  kOrdered,     // the same bits every time; the engine keeps one matrix of T x T a head in bf16
  kAccumulated  // added in fp32 by whoever comes first: memory linear in T, other bits every time
};

/// 23 operations for kOrdered, 24 for kAccumulated; two fewer when every query head has a key head
/// of its own, and six more with a cap, five with slopes, six with documents.
Graph attention_backward_graph(const kernels::cuda::AttentionProblem& problem, QueryGradient form);
Graph attention_backward_graph(const kernels::cuda::AttentionProblem& problem, QueryGradient form,
                               const RowStrides& strides);

}  // namespace shardwright::exec::cudnn
