// SPDX-License-Identifier: Apache-2.0
// What operations take, shared by the oracle, the host and device kernels: views of matrices and
// rows, the shape of attention, the numbers of an AdamW step, the parts of a softmax.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shardwright::kernels {

inline constexpr std::int32_t kIgnoreTarget = -100;

/// `first_row` of an embedding table that is no part of a larger one.
inline constexpr std::int64_t kWholeTable = -1;
/// int32 elements of the workspace of an embedding's gradient, for `tokens` tokens and a table of
/// `vocab` rows.
constexpr std::int64_t embedding_workspace_ints(std::int64_t tokens, std::int64_t vocab) {
  return tokens + vocab + 1;
}

// Matrices and rows of matrices.

namespace host {

/// What an operation does with a result that is already there.
enum class Store : bool {
  kOverwrite,
  kAdd  // the finished result is added to what is there
};

/// `rows` x `cols` elements in someone else's memory, row-major, rows `stride` elements apart (at
/// least `cols`).
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  Matrix() = default;
  Matrix(T* at, std::int64_t rows_, std::int64_t cols_) : Matrix(at, rows_, cols_, cols_) {}
  Matrix(T* at, std::int64_t rows_, std::int64_t cols_, std::int64_t stride_)
      : data(at), rows(rows_), cols(cols_), stride(stride_) {}
  /// A writable view is also a readable one.
  template <class U>
  requires(std::is_same_v<T, const U>) Matrix(const Matrix<U>& other)
      : Matrix(other.data, other.rows, other.cols, other.stride) {}

  T* row(std::int64_t index) const { return data + index * stride; }
};

/// `tokens` times `heads` rows of `cols` numbers: plain matrices, or the heads inside packed
/// tokens. The heads of a token lie side by side, tokens `stride` elements apart: a plain [n, cols]
/// matrix is {n, 1, cols, cols}, the query heads of a packed [n, (H + 2 Hkv) D] buffer are
/// {n, H, D, (H + 2 Hkv) D}.
struct Rows {
  std::int64_t tokens = 0;
  std::int64_t heads = 1;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  static Rows matrix(std::int64_t rows, std::int64_t cols) { return {rows, 1, cols, cols}; }
  std::int64_t count() const { return tokens * heads; }
};

/// RMSNorm, y = x / sqrt(mean(x^2) + eps) * (weight + offset), or, where there is room for means,
/// LayerNorm, y = (x - mean) / sqrt(variance + eps) * weight + bias, whose variance is that of the
/// row, not an estimate for others (1 / cols).
template <class T>
struct NormForward {
  Rows rows;
  const T* x = nullptr;
  const T* weight = nullptr;  // [cols]
  float eps = 0;
  T* y = nullptr;           // may be x
  float* rstd = nullptr;    // [rows.count()], becomes 1 / sqrt(...)
  float offset = 0;         // of RMSNorm: gemma keeps weights as their difference from 1
  const T* bias = nullptr;  // [cols], of LayerNorm; may be null
  float* mean = nullptr;    // [rows.count()], of LayerNorm
};

/// d_x = the gradient of x, plus d_residual when it is not null: the gradient that reached the same
/// x past the norm.
template <class T>
struct NormBackward {
  Rows rows;
  Rows x_rows;  // of x alone, which of RMSNorm may differ in the stride
  const T* x = nullptr;
  const T* weight = nullptr;
  const float* rstd = nullptr;
  const T* d_y = nullptr;
  const T* d_residual = nullptr;
  T* d_x = nullptr;  // may be d_y or d_residual
  float offset = 0;
  const float* mean = nullptr;  // null: RMSNorm
};

}  // namespace host

// Attention.

/// The shape of causal grouped-query attention: B sequences of T tokens; H query heads, Hkv key and
/// value heads of D numbers. Query head h reads key head h / (H / Hkv).
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  double scale = 1.0;  // of the scores, usually 1 / sqrt(D)
  /// Scores become softcap * tanh(score / softcap); 0: they stay as they are.
  double softcap = 0.0;
  /// A score falls by the slope of its head for each token between key and query (alibi_share):
  /// these are heads first_head, first_head + 1, ... of all_heads; 0: of as many as there are here.
  bool alibi = false;
  std::int64_t first_head = 0, all_heads = 0;

  std::int64_t alibi_heads() const { return all_heads > 0 ? all_heads : heads; }
  std::int64_t tokens() const { return batch * seq; }
  std::int64_t group() const { return heads / kv_heads; }
  /// Whether scores go to the softmax as they are.
  bool has_plain_scores() const { return softcap == 0 && !alibi; }
};

/// k / n, from above 0 to 1: the slope of a head of ALiBi (Press et al., Train Short, Test Long) is
/// 2 to the power of -8 times this. MPT gives slopes to heads in this order: 2^(-8 k / n) for k = 1
/// to n, n the next power of two; where that is more than there are heads, first those of even k.
constexpr float alibi_share(int head, int heads) {
  int power = 1;
  while (power < heads) power *= 2;
  const int half = power / 2;
  const int k = power == heads ? head + 1 : head < half ? 2 * head + 2 : 2 * (head - half) + 1;
  return static_cast<float>(k) / static_cast<float>(power);
}

// Rotary position embedding.

/// Cosines and sines in someone else's memory, each [positions, pairs].
struct RopeView {
  std::int64_t positions = 0;
  std::int64_t pairs = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

// AdamW.

/// One step with decoupled weight decay (Loshchilov and Hutter, 2019) in PyTorch's order of
/// operations:
///   g = grad_scale * gradient;  p *= 1 - lr * weight_decay
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;    // t, from 1
  double grad_scale = 1.0;  // clipping and the division by the number of micro-batches
  std::uint64_t seed = 0;   // of stochastic rounding
};

/// Which parameters of the model the elements of an array are: the random bits of a parameter
/// depend on nothing else. An array may be, or begin and end inside, the rows of some columns of a
/// matrix.
struct ElementIndices {
  std::uint64_t first = 0;      // of element 0; with rows of the element that begins its row
  std::int64_t row_begin = 0;   // place of element 0 in its row
  std::int64_t row_length = 0;  // of the array; 0: its elements follow one another
  std::int64_t row_stride = 0;  // from row to row in the model

  constexpr std::uint64_t of(std::int64_t i) const {
    if (row_length == 0) return first + static_cast<std::uint64_t>(i);
    const std::int64_t at = row_begin + i;
    return first + static_cast<std::uint64_t>(at / row_length * row_stride + at % row_length);
  }
  /// How many of `count` elements from `i` on follow one another in the model.
  constexpr std::int64_t run(std::int64_t i, std::int64_t count) const {
    if (row_length == 0) return count;
    const std::int64_t left = row_length - (row_begin + i) % row_length;
    return left < count ? left : count;
  }
};

/// The factor that brings a gradient of this norm down to `max_norm`, as torch.nn.utils
/// .clip_grad_norm_ computes it: min(1, max_norm / (norm + 1e-6)). max_norm 0 means no clipping.
inline double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

// Losses of logits whose columns are spread over ranks: a softmax in parts, so that every rank can
// compute the loss of a row. The parts of a row are merged in order: the largest maximum M, and the
// sum of exponents * e^(maximum - M). As parts are of the vocabulary and not of ranks, the loss has
// the same bits however parts are spread over ranks.

/// What a rank that has some columns of the logits tells the others of a row.
struct VocabularyPart {
  float maximum;    // of the part's logits
  float exponents;  // sum of e^(logit - maximum)
  float target;     // the target's logit, never -0; -0 where another part has it or it is ignored
};

/// The parts of all rows: part p of row r is data[p * stride + r].
struct VocabularyParts {
  const VocabularyPart* data = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;
};

/// The maximum of a part without numbers above it: finite, so that differences are numbers.
inline constexpr float kLowestMaximum = -3.0e38f;

}  // namespace shardwright::kernels
