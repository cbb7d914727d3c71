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
  kSlopes,      // fp32, one for each head, 16 bytes apart, so that every slice begins aligned
  kScale,
  kMasked,  // the score of what a query does not see
  kOne,
  kCap,  // of scores that go to the softmax as cap * tanh(score / cap)
  kInverseCap
};

/// 14 operations: the scores, their softmax, the output and the statistics; three more with a cap,
/// five with slopes.
Graph attention_forward_graph(const kernels::cuda::AttentionProblem& problem);

inline constexpr std::int64_t kSlopeStride = 4;

/// How dQ comes together from the blocks of keys.
enum class QueryGradient {
  kOrdered,     // the same bits every time; the engine keeps one matrix of T x T a head in bf16
  kAccumulated  // added in fp32 by whoever comes first: memory linear in T, other bits every time
};

/// 23 operations for kOrdered, 24 for kAccumulated; two fewer when every query head has a key head
/// of its own, and six more with a cap, five with slopes.
Graph attention_backward_graph(const kernels::cuda::AttentionProblem& problem, QueryGradient form);

}  // namespace shardwright::exec::cudnn
