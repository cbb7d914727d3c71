// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/attention_graph.h"

#include <optional>

namespace shardwright::exec::cudnn {
namespace {

using kernels::cuda::AttentionProblem;
using Tensor = Graph::Tensor;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;
constexpr cudnnDataType_t kFp32 = CUDNN_DATA_FLOAT;

/// What both graphs have in common: dims, the inputs and the masked scores.
struct Parts {
  const AttentionProblem& problem;
  RowStrides strides;
  Graph graph{};
  std::int64_t b = problem.documents ? problem.most_documents : problem.shape.batch;
  std::int64_t t = problem.shape.seq, d = problem.shape.head_dim;
  std::int64_t h = problem.shape.heads, hkv = problem.shape.kv_heads;
  Dims scores = {b, h, t, t};
  Dims rows = {b, h, t, 1};
  // Of packed documents: where each begins, and how long it is.
  std::optional<Tensor> query_begins{}, key_begins{}, out_begins{}, row_begins{}, lengths{};

  Parts(const AttentionProblem& one, const RowStrides& its) : problem(one), strides(its) {
    if (!problem.documents) return;
    const auto list = [&](Uid uid, cudnnDataType_t dtype, std::int64_t length) {
      return graph.real(uid, dtype, {length, 1, 1, 1}, {1, 1, 1, 1});
    };
    query_begins = list(kQueryBegins, CUDNN_DATA_INT64, b + 1);
    key_begins = list(kKeyBegins, CUDNN_DATA_INT64, b + 1);
    out_begins = list(kOutBegins, CUDNN_DATA_INT64, b + 1);
    row_begins = list(kRowBegins, CUDNN_DATA_INT64, b + 1);
    lengths = list(kLengths, CUDNN_DATA_INT32, b);
  }

  Dims lying(std::int64_t stride) const { return {t * stride, d, stride, 1}; }
  /// Heads inside [tokens, ...] rows: [B, heads, T, D] by strides, no copy.
  Tensor queries(Uid uid) {
    return graph.real(uid, kBf16, {b, h, t, d}, lying(strides.query), query_begins);
  }
  Tensor keys(Uid uid) {
    return graph.real(uid, kBf16, {b, hkv, t, d}, lying(strides.key), key_begins);
  }
  Tensor outputs(Uid uid) {
    return graph.real(uid, kBf16, {b, h, t, d}, lying(strides.out), out_begins);
  }
  /// Keys with T and D exchanged, as products with the transpose want them.
  Tensor transposed_keys(Uid uid) {
    return graph.real(uid, kBf16, {b, hkv, d, t}, {t * strides.key, d, 1, strides.key}, key_begins);
  }
  /// A number for each row of scores: [B, H, T], of documents [tokens, H].
  Tensor row_numbers(Uid uid) {
    if (!problem.documents) return graph.real(uid, kFp32, rows, contiguous(rows));
    return graph.real(uid, kFp32, rows, {t * strides.rows, 1, strides.rows, 1}, row_begins);
  }
  Tensor score_like(cudnnDataType_t dtype = kFp32) { return graph.between(dtype, scores); }

  Tensor scaled(Tensor x, Tensor scale) {
    const Tensor y = score_like();
    graph.pointwise(CUDNN_POINTWISE_MUL, x, scale, y);
    return y;
  }
  /// Scores of a by b; what lies beyond a document counts as 0 where asked.
  Tensor product(Tensor a, Tensor b_, bool zero_beyond = false) {
    const Tensor y = score_like();
    graph.matmul(a, b_, y, {.m = lengths, .n = lengths, .k = {}, .zero_beyond = zero_beyond});
    return y;
  }
  /// y = scores times rows.
  void gather(Tensor scores_, Tensor rows_, Tensor y) {
    graph.matmul(scores_, rows_, y, {.m = lengths, .n = {}, .k = lengths});
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
  /// Scores beyond a document's length become kMasked.
  Tensor within_documents(Tensor x) {
    if (!problem.documents) return x;
    const auto [row, col] = positions(x);
    const Tensor row_is = score_like(CUDNN_DATA_BOOLEAN), col_is = score_like(CUDNN_DATA_BOOLEAN),
                 both = score_like(CUDNN_DATA_BOOLEAN), y = score_like();
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, row, *lengths, row_is);
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, col, *lengths, col_is);
    graph.pointwise(CUDNN_POINTWISE_LOGICAL_AND, row_is, col_is, both);
    graph.select(x, graph.scalar(kBeyond), both, y);
    return y;
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
  return attention_forward_graph(problem, row_strides(problem));
}

Graph attention_forward_graph(const AttentionProblem& problem, const RowStrides& strides) {
  Parts p(problem, strides);
  Graph& g = p.graph;
  const Tensor q = p.queries(kQuery);
  Tensor scores =
      p.scaled(p.product(q, p.transposed_keys(kKey), problem.documents), g.scalar(kScale));
  if (p.is_capped()) scores = p.scaled(p.bent(scores), g.scalar(kCap));
  if (problem.shape.alibi) scores = p.sloped(scores);
  scores = p.causal(p.within_documents(scores));

  const Tensor largest = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const Tensor e = p.exp(p.pointwise(CUDNN_POINTWISE_SUB, scores, largest));
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Tensor log = g.between(kFp32, p.rows);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.pointwise(CUDNN_POINTWISE_ADD, largest, log, p.row_numbers(kStatistics));

  const Tensor probabilities = p.score_like(kBf16);
  g.pointwise(CUDNN_POINTWISE_DIV, e, sum, probabilities);
  p.gather(probabilities, p.keys(kValue), p.outputs(kOut));
  return std::move(p.graph);
}

Graph attention_backward_graph(const AttentionProblem& problem, QueryGradient form) {
  return attention_backward_graph(problem, form, row_strides(problem));
}

Graph attention_backward_graph(const AttentionProblem& problem, QueryGradient form,
                               const RowStrides& strides) {
  Parts p(problem, strides);
  Graph& g = p.graph;
  const Dims query_dims = {p.b, p.h, p.t, p.d};
  const Dims transposed_scores = {p.t * p.t * p.h, p.t * p.t, 1, p.t};
  const Tensor scale = g.scalar(kScale);
  const Tensor q = p.queries(kQuery);
  const Tensor k_t = p.transposed_keys(kKey);
  const Tensor v_t = p.transposed_keys(kValue);
  const Tensor d_out = p.outputs(kOutGradient);

  // delta = sum over D of out * d_out. It lies in memory, because every block of keys reads it. The
  // factor of 1 stands where dropout would have its own; without it cuDNN 9.19 does not recognise
  // the whole and keeps two more matrices of T x T.
  const Tensor out_times = g.between(kFp32, query_dims);
  g.pointwise(CUDNN_POINTWISE_MUL, d_out, p.outputs(kOut), out_times);
  const Tensor delta = p.row_numbers(kDelta);
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, out_times, sum);
  g.pointwise(CUDNN_POINTWISE_MUL, sum, g.scalar(kOne), delta);

  // The probabilities again.
  const Tensor statistics = p.row_numbers(kStatistics);
  Tensor bare = p.scaled(p.product(q, k_t), scale), bent;
  if (p.is_capped()) {
    bent = p.bent(bare);
    bare = p.scaled(bent, g.scalar(kCap));
  }
  if (problem.shape.alibi) bare = p.sloped(bare);
  bare = p.within_documents(bare);
  const Tensor probabilities = p.exp(p.causal(p.pointwise(CUDNN_POINTWISE_SUB, bare, statistics)));

  // Gradients of key and value heads, summed over the query heads that share them. cuDNN finds the
  // documents of every query head where those of the key heads begin, times the heads of a group.
  const auto kv_gradient = [&](Uid uid, Uid every_uid, Tensor scores, Tensor rows) {
    const Tensor left = g.between(kBf16, p.scores, transposed_scores);
    g.reshape(scores, left);
    const Tensor result = p.keys(uid);
    if (p.h == p.hkv) return p.gather(left, rows, result);
    const Tensor every_head =
        problem.documents
            ? g.real(every_uid, kBf16, query_dims, p.lying(p.h / p.hkv * strides.key), p.key_begins)
            : g.between(kBf16, query_dims);
    p.gather(left, rows, every_head);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, every_head, result);
  };
  kv_gradient(kValueGradient, kEveryValueGradient, probabilities, d_out);

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
  kv_gradient(kKeyGradient, kEveryKeyGradient, d_scores, q);

  const Tensor k = g.between(kBf16, {p.b, p.hkv, p.t, p.d}, p.lying(strides.key), p.key_begins);
  g.reshape(k_t, k);
  const Tensor d_q = p.queries(kQueryGradient);
  if (form == QueryGradient::kOrdered) {
    p.gather(d_scores, k, d_q);
  } else {
    const Tensor total =
        g.real(kQueryTotal, kFp32, query_dims,
               problem.documents ? p.lying(strides.query) : contiguous(query_dims), p.query_begins);
    p.gather(d_scores, k, total);
    g.pointwise(CUDNN_POINTWISE_IDENTITY, total, d_q);
  }
  return std::move(p.graph);
}

}  // namespace shardwright::exec::cudnn
