// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/attention_graph.h"

namespace shardwright::exec::cudnn {
namespace {

using kernels::cuda::AttentionProblem;
using Tensor = Graph::Tensor;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;
constexpr cudnnDataType_t kFp32 = CUDNN_DATA_FLOAT;

/// What both graphs have in common: dims, the inputs and the masked scores.
struct Parts {
  const AttentionProblem& problem;
  Graph graph{};
  std::int64_t b = problem.shape.batch, t = problem.shape.seq, d = problem.shape.head_dim;
  std::int64_t h = problem.shape.heads, hkv = problem.shape.kv_heads;
  Dims scores = {b, h, t, t};
  Dims rows = {b, h, t, 1};

  /// Heads inside [tokens, ...] rows: [B, heads, T, D] by strides, no copy.
  Tensor heads(Uid uid, std::int64_t count, std::int64_t stride) {
    return graph.real(uid, kBf16, {b, count, t, d}, {t * stride, d, stride, 1});
  }
  /// The same with T and D exchanged, as products with the transpose want them.
  Tensor transposed(Uid uid, std::int64_t count, std::int64_t stride) {
    return graph.real(uid, kBf16, {b, count, d, t}, {t * stride, d, 1, stride});
  }
  Tensor score_like(cudnnDataType_t dtype = kFp32) { return graph.between(dtype, scores); }

  Tensor scaled(Tensor x, Tensor scale) {
    const Tensor y = score_like();
    graph.pointwise(CUDNN_POINTWISE_MUL, x, scale, y);
    return y;
  }
  Tensor product(Tensor a, Tensor b_) {
    const Tensor y = score_like();
    graph.matmul(a, b_, y);
    return y;
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b_) {
    const Tensor y = score_like();
    graph.pointwise(mode, x, b_, y);
    return y;
  }
  Tensor exp(Tensor x) {
    const Tensor y = score_like();
    graph.pointwise(CUDNN_POINTWISE_EXP, x, y);
    return y;
  }
  /// tanh(x / cap).
  Tensor bent(Tensor x) {
    const Tensor share = scaled(x, graph.scalar(kInverseCap)), y = score_like();
    graph.pointwise(CUDNN_POINTWISE_TANH_FWD, share, y);
    return y;
  }
  bool is_capped() const { return problem.shape.softcap != 0; }
  struct Positions {
    Tensor query, key;
  };
  /// Of every score.
  Positions positions(Tensor x) {
    const Positions at{score_like(CUDNN_DATA_INT32), score_like(CUDNN_DATA_INT32)};
    graph.index(2, x, at.query);
    graph.index(3, x, at.key);
    return at;
  }
  /// x + slope * (key - query).
  Tensor sloped(Tensor x) {
    const auto [row, col] = positions(x);
    const Tensor ahead = score_like(CUDNN_DATA_INT32);
    graph.pointwise(CUDNN_POINTWISE_SUB, col, row, ahead);
    const Tensor slopes =
        graph.real(kSlopes, kFp32, {1, h, 1, 1}, {kSlopeStride * h, kSlopeStride, 1, 1});
    return pointwise(CUDNN_POINTWISE_ADD, x, pointwise(CUDNN_POINTWISE_MUL, ahead, slopes));
  }
  /// Scores of keys behind the query become kMasked.
  Tensor causal(Tensor x) {
    const auto [row, col] = positions(x);
    const Tensor sees = score_like(CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, col, sees);
    const Tensor y = score_like();
    graph.select(x, graph.scalar(kMasked), sees, y);
    return y;
  }
};

}  // namespace

Graph attention_forward_graph(const AttentionProblem& problem) {
  Parts p{problem};
  Graph& g = p.graph;
  const std::int64_t stride = problem.packed_stride;
  const Tensor q = p.heads(kQuery, p.h, stride);
  Tensor scores = p.scaled(p.product(q, p.transposed(kKey, p.hkv, stride)), g.scalar(kScale));
  if (p.is_capped()) scores = p.scaled(p.bent(scores), g.scalar(kCap));
  if (problem.shape.alibi) scores = p.sloped(scores);
  scores = p.causal(scores);

  const Tensor largest = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const Tensor e = p.exp(p.pointwise(CUDNN_POINTWISE_SUB, scores, largest));
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Tensor log = g.between(kFp32, p.rows);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.pointwise(CUDNN_POINTWISE_ADD, largest, log,
              g.real(kStatistics, kFp32, p.rows, contiguous(p.rows)));

  const Tensor probabilities = p.score_like(kBf16);
  g.pointwise(CUDNN_POINTWISE_DIV, e, sum, probabilities);
  g.matmul(probabilities, p.heads(kValue, p.hkv, stride), p.heads(kOut, p.h, problem.out_stride));
  return std::move(p.graph);
}

Graph attention_backward_graph(const AttentionProblem& problem, QueryGradient form) {
  Parts p{problem};
  Graph& g = p.graph;
  const std::int64_t stride = problem.packed_stride;
  const Dims query_dims = {p.b, p.h, p.t, p.d};
  const Dims transposed_scores = {p.t * p.t * p.h, p.t * p.t, 1, p.t};
  const Tensor scale = g.scalar(kScale);
  const Tensor q = p.heads(kQuery, p.h, stride);
  const Tensor k_t = p.transposed(kKey, p.hkv, stride);
  const Tensor v_t = p.transposed(kValue, p.hkv, stride);
  const Tensor d_out = p.heads(kOutGradient, p.h, problem.out_stride);

  // delta = sum over D of out * d_out. It lies in memory, because every block of keys reads it. The
  // factor of 1 stands where dropout would have its own; without it cuDNN 9.19 does not recognise
  // the whole and keeps two more matrices of T x T.
  const Tensor out_times = g.between(kFp32, query_dims);
  g.pointwise(CUDNN_POINTWISE_MUL, d_out, p.heads(kOut, p.h, problem.out_stride), out_times);
  const Tensor delta = g.real(kDelta, kFp32, p.rows, contiguous(p.rows));
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, out_times, sum);
  g.pointwise(CUDNN_POINTWISE_MUL, sum, g.scalar(kOne), delta);

  // The probabilities again.
  const Tensor statistics = g.real(kStatistics, kFp32, p.rows, contiguous(p.rows));
  Tensor bare = p.scaled(p.product(q, k_t), scale), bent;
  if (p.is_capped()) {
    bent = p.bent(bare);
    bare = p.scaled(bent, g.scalar(kCap));
  }
  if (problem.shape.alibi) bare = p.sloped(bare);
  const Tensor probabilities = p.exp(p.causal(p.pointwise(CUDNN_POINTWISE_SUB, bare, statistics)));

  // Gradients of key and value heads, summed over the query heads that share them.
  const auto kv_gradient = [&](Uid uid, Tensor scores, Tensor rows) {
    const Tensor left = g.between(kBf16, p.scores, transposed_scores);
    g.reshape(scores, left);
    const Tensor result = p.heads(uid, p.hkv, stride);
    if (p.h == p.hkv) return g.matmul(left, rows, result);
    const Tensor every_head = g.between(kBf16, query_dims);
    g.matmul(left, rows, every_head);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, every_head, result);
  };
  kv_gradient(kValueGradient, probabilities, d_out);

  // d_scores = scale * x with x = p * (d_out V^T - delta); with a cap x - x tanh^2, in this form:
  // x (1 - tanh^2) is no engine's.
  const Tensor moved = p.pointwise(CUDNN_POINTWISE_SUB, p.product(d_out, v_t), delta);
  Tensor d_capped = p.pointwise(CUDNN_POINTWISE_MUL, moved, probabilities);
  if (p.is_capped()) {
    const Tensor square = p.pointwise(CUDNN_POINTWISE_MUL, bent, bent);
    const Tensor lost = p.pointwise(CUDNN_POINTWISE_MUL, d_capped, square);
    d_capped = p.pointwise(CUDNN_POINTWISE_SUB, d_capped, lost);
  }
  const Tensor d_scores = p.scaled(d_capped, scale);
  kv_gradient(kKeyGradient, d_scores, q);

  const Tensor k = g.between(kBf16, {p.b, p.hkv, p.t, p.d}, Dims{p.t * stride, p.d, stride, 1});
  g.reshape(k_t, k);
  const Tensor d_q = p.heads(kQueryGradient, p.h, stride);
  if (form == QueryGradient::kOrdered) {
    g.matmul(d_scores, k, d_q);
  } else {
    const Tensor total = g.real(kQueryTotal, kFp32, query_dims, contiguous(query_dims));
    g.matmul(d_scores, k, total);
    g.pointwise(CUDNN_POINTWISE_IDENTITY, total, d_q);
  }
  return std::move(p.graph);
}

}  // namespace shardwright::exec::cudnn
