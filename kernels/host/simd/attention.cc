// SPDX-License-Identifier: Apache-2.0
// Causal attention tile by tile, without ever holding a T x T matrix (Dao et al.,
// FlashAttention-2).
//
// A query tile is up to 128 rows: a run of neighbouring tokens, each with all the query heads that
// share one key head, token-major. A key tile is 64 keys. Forward keeps a running maximum and sum
// per row and rescales what it has when the maximum rises; keys are taken in ascending order.
// Backward computes the probabilities again from the saved logarithm of the sum: one kernel takes a
// query tile and walks over keys (d_q), the other takes a key tile and walks over queries (d_k,
// d_v), both in ascending order.
#include <algorithm>
#include <cmath>

#include "kernels/host/parallel.h"
#include "kernels/host/simd/kernels.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

/// The rows of one task: a query tile of one sequence and key head.
template <class T>
struct QueryTile {
  const AttentionInputs<T>& a;
  std::int64_t batch, kv_head, first_token, tokens;

  SHARDWRIGHT_INLINE std::int64_t rows() const { return tokens * a.shape.heads / a.shape.kv_heads; }
  SHARDWRIGHT_INLINE std::int64_t group() const { return a.shape.heads / a.shape.kv_heads; }
  SHARDWRIGHT_INLINE std::int64_t token_of(std::int64_t row) const {
    return first_token + row / group();
  }
  SHARDWRIGHT_INLINE std::int64_t head_of(std::int64_t row) const {
    return kv_head * group() + row % group();
  }
  /// Offset of a row in a [tokens, heads, D] buffer with this stride between tokens.
  SHARDWRIGHT_INLINE std::int64_t offset(std::int64_t row, std::int64_t stride) const {
    return (batch * a.shape.seq + token_of(row)) * stride + head_of(row) * a.shape.head_dim;
  }
  /// Offset of a row in lse and delta, which are [B, H, T].
  SHARDWRIGHT_INLINE std::int64_t statistic(std::int64_t row) const {
    return (batch * a.shape.heads + head_of(row)) * a.shape.seq + token_of(row);
  }
  SHARDWRIGHT_INLINE std::int64_t first_key(std::int64_t row) const {
    return a.first_key == nullptr ? 0 : a.first_key[batch * a.shape.seq + token_of(row)];
  }
};

SHARDWRIGHT_INLINE std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
SHARDWRIGHT_INLINE std::int64_t most(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

SHARDWRIGHT_INLINE std::int64_t tile_tokens(const AttentionShape& s) {
  return most(1, kQueryRows / (s.heads / s.kv_heads));
}

template <class T>
SHARDWRIGHT_INLINE QueryTile<T> query_tile(const AttentionInputs<T>& a, std::int64_t batch,
                                           std::int64_t kv_head, std::int64_t index) {
  const std::int64_t first = index * tile_tokens(a.shape);
  return {a, batch, kv_head, first, least(tile_tokens(a.shape), a.shape.seq - first)};
}

/// The keys of [first, first + count) that a row may see, relative to `first`.
struct Visible {
  std::int64_t begin, end;
};

template <class T>
SHARDWRIGHT_INLINE Visible visible(const QueryTile<T>& tile, std::int64_t row, std::int64_t first,
                                   std::int64_t count) {
  return {most(0, tile.first_key(row) - first), least(count, tile.token_of(row) + 1 - first)};
}

template <class T>
SHARDWRIGHT_INLINE bool any_visible(const QueryTile<T>& tile, std::int64_t first,
                                    std::int64_t count) {
  for (std::int64_t row = 0; row < tile.rows(); row += tile.group()) {
    const Visible keys = visible(tile, row, first, count);
    if (keys.begin < keys.end) return true;
  }
  return false;
}

/// Copies the rows of a tile from a [tokens, heads, D] buffer, times `factor`.
template <class T>
SHARDWRIGHT_INLINE void load_rows(const QueryTile<T>& tile, const T* from, std::int64_t stride,
                                  float factor, float* to) {
  const std::int64_t d = tile.a.shape.head_dim;
  for (std::int64_t row = 0; row < tile.rows(); ++row) {
    const T* in = from + tile.offset(row, stride);
    for_vectors(d, [&](std::int64_t i, auto lanes) {
      store(to + row * d + i, load(in + i, lanes) * splat(factor), lanes);
    });
  }
}

/// Rows of keys or values as floats: in place when they are, else converted into `buffer`.
struct FloatRows {
  const float* data;
  std::int64_t stride;
};
SHARDWRIGHT_INLINE FloatRows float_rows(const float* from, std::int64_t stride, std::int64_t,
                                        std::int64_t, float*) {
  return {from, stride};
}
SHARDWRIGHT_INLINE FloatRows float_rows(const BFloat16* from, std::int64_t stride,
                                        std::int64_t rows, std::int64_t d, float* buffer) {
  for (std::int64_t row = 0; row < rows; ++row) convert(from + row * stride, buffer + row * d, d);
  return {buffer, d};
}

template <class T>
SHARDWRIGHT_INLINE const T* keys_at(const AttentionInputs<T>& a, const T* base, std::int64_t batch,
                                    std::int64_t kv_head, std::int64_t key) {
  return base + (batch * a.shape.seq + key) * a.kv_stride + kv_head * a.shape.head_dim;
}

/// Caps scores and lowers them with the distance of key and query, where the shape says so. By how
/// much a capped score rises with the score goes to `slope`, unless that is null.
template <class T>
SHARDWRIGHT_INLINE void bend_scores(const QueryTile<T>& tile, std::int64_t first,
                                    std::int64_t count, float* scores, float* slope) {
  const AttentionInputs<T>& a = tile.a;
  const auto cap = static_cast<float>(a.shape.softcap);
  if (cap == 0.0f && a.slopes == nullptr) return;
  for (std::int64_t row = 0; row < tile.rows(); ++row) {
    const float fall = a.slopes != nullptr ? a.slopes[tile.head_of(row)] : 0.0f;
    for (std::int64_t i = 0; i < count; ++i) {
      float& score = scores[row * count + i];
      if (cap > 0.0f) {
        const float share = ::tanhf(score / cap);
        score = cap * share;
        if (slope != nullptr) slope[row * count + i] = 1.0f - share * share;
      }
      score += fall * static_cast<float>(first + i - tile.token_of(row));
    }
  }
}

/// Scores to probabilities, exp(s - lse), and zero where the mask hides.
template <class T>
SHARDWRIGHT_INLINE void probabilities(const QueryTile<T>& tile, const float* lse,
                                      std::int64_t first, std::int64_t count, float* scores) {
  for (std::int64_t row = 0; row < tile.rows(); ++row) {
    float* s = scores + row * count;
    const Visible keys = visible(tile, row, first, count);
    const Vec of_row = splat(lse[tile.statistic(row)]);
    for (std::int64_t i = 0; i < least(keys.begin, count); ++i) s[i] = 0.0f;
    for_vectors(keys.end - keys.begin, [&](std::int64_t i, auto lanes) {
      float* at = s + keys.begin + i;
      store(at, exponential(load(at, lanes) - of_row), lanes);
    });
    for (std::int64_t i = most(keys.end, keys.begin); i < count; ++i) s[i] = 0.0f;
  }
}

/// d_scores = p (d_p - delta), times the slope of a cap unless null, written over d_p.
template <class T>
SHARDWRIGHT_INLINE void score_gradients(const QueryTile<T>& tile, const float* delta,
                                        std::int64_t count, const float* p, const float* slope,
                                        float* d_p) {
  for (std::int64_t row = 0; row < tile.rows(); ++row) {
    const Vec of_row = splat(delta[tile.statistic(row)]);
    for_vectors(count, [&](std::int64_t i, auto lanes) {
      const std::int64_t at = row * count + i;
      Vec d = load(p + at, lanes) * (load(d_p + at, lanes) - of_row);
      if (slope != nullptr) d = d * load(slope + at, lanes);
      store(d_p + at, d, lanes);
    });
  }
}

SHARDWRIGHT_INLINE std::int64_t tiles_of(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

/// Task order: sequence, key head, query tile; late tiles, which have the most keys, first.
template <class T>
SHARDWRIGHT_INLINE QueryTile<T> tile_of_task(const AttentionInputs<T>& a, std::int64_t task) {
  const AttentionShape& shape = a.shape;
  const std::int64_t pairs = shape.batch * shape.kv_heads;
  const std::int64_t pair = task % pairs;
  return query_tile(a, pair / shape.kv_heads, pair % shape.kv_heads,
                    tiles_of(shape.seq, tile_tokens(shape)) - 1 - task / pairs);
}

template <class T>
void attention_forward(const AttentionForward<T>& f, std::int64_t task, Scratch& scratch) {
  const AttentionInputs<T>& a = f.in;
  const std::int64_t d = a.shape.head_dim;
  const QueryTile<T> tile = tile_of_task(a, task);
  const std::int64_t rows = tile.rows();
  float* q = scratch.floats(rows * d);
  float* out = scratch.floats(rows * d);
  float* scores = scratch.floats(rows * kKeyRows);
  float* top = scratch.floats(rows);
  float* total = scratch.floats(rows);
  float* k_buffer = scratch.floats(kKeyRows * d);
  float* v_buffer = scratch.floats(kKeyRows * d);
  load_rows(tile, a.q, a.q_stride, static_cast<float>(a.shape.scale), q);
  for (std::int64_t row = 0; row < rows; ++row) {
    top[row] = -__builtin_inff();
    total[row] = 0.0f;
  }
  std::memset(out, 0, static_cast<std::size_t>(rows * d) * sizeof(float));

  const std::int64_t last_key = tile.first_token + tile.tokens;
  for (std::int64_t first = 0; first < last_key; first += kKeyRows) {
    const std::int64_t count = least(kKeyRows, last_key - first);
    if (!any_visible(tile, first, count)) continue;
    const FloatRows k = float_rows(keys_at(a, a.k, tile.batch, tile.kv_head, first), a.kv_stride,
                                   count, d, k_buffer);
    const FloatRows v = float_rows(keys_at(a, a.v, tile.batch, tile.kv_head, first), a.kv_stride,
                                   count, d, v_buffer);
    gemm(Layout::kNT, rows, count, d, q, d, k.data, k.stride, scores, count, false);
    bend_scores(tile, first, count, scores, nullptr);
    for (std::int64_t row = 0; row < rows; ++row) {
      float* s = scores + row * count;
      const Visible keys = visible(tile, row, first, count);
      const std::int64_t seen = keys.end - keys.begin;
      if (seen <= 0) {
        std::memset(s, 0, static_cast<std::size_t>(count) * sizeof(float));
        continue;
      }
      for (std::int64_t i = 0; i < keys.begin; ++i) s[i] = 0.0f;
      for (std::int64_t i = keys.end; i < count; ++i) s[i] = 0.0f;
      float* p = s + keys.begin;
      const float before = top[row];
      const float tile_top = largest(p, seen);
      const float now = before < tile_top ? tile_top : before;
      const float added = sum(seen, [&](Vec partial, std::int64_t i, auto lanes) {
        store(p + i, exponential(load(p + i, lanes) - splat(now)), lanes);
        return partial + load(p + i, lanes);
      });
      if (now != before) {
        const Vec shrink = exponential(splat(before) - splat(now));
        top[row] = now;
        total[row] *= shrink[0];
        for_vectors(d, [&](std::int64_t i, auto lanes) {
          store(out + row * d + i, load(out + row * d + i, lanes) * shrink, lanes);
        });
      }
      total[row] += added;
    }
    gemm(Layout::kNN, rows, d, count, scores, count, v.data, v.stride, out, d, true);
  }

  for (std::int64_t row = 0; row < rows; ++row) {
    const Vec inverse = splat(1.0f / total[row]);
    T* to = f.out + tile.offset(row, a.out_stride);
    for_vectors(d, [&](std::int64_t i, auto lanes) {
      store(to + i, load(out + row * d + i, lanes) * inverse, lanes);
    });
    f.lse[tile.statistic(row)] = static_cast<float>(static_cast<double>(top[row]) +
                                                    std::log(static_cast<double>(total[row])));
  }
}

/// delta = sum of d_out * out over a head, for tokens [begin, end).
template <class T>
void attention_delta(const AttentionBackward<T>& b, std::int64_t begin, std::int64_t end) {
  const AttentionInputs<T>& a = b.in;
  const AttentionShape& shape = a.shape;
  for (std::int64_t token = begin; token < end; ++token) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t at = token * a.out_stride + head * shape.head_dim;
      b.delta[(token / shape.seq * shape.heads + head) * shape.seq + token % shape.seq] =
          sum(shape.head_dim, [&](Vec partial, std::int64_t i, auto lanes) {
            return madd(load(b.d_out + at + i, lanes), load(b.out + at + i, lanes), partial);
          });
    }
  }
}

template <class T>
void attention_backward_q(const AttentionBackward<T>& b, std::int64_t task, Scratch& scratch) {
  const AttentionInputs<T>& a = b.in;
  const std::int64_t d = a.shape.head_dim;
  const QueryTile<T> tile = tile_of_task(a, task);
  const std::int64_t rows = tile.rows();
  float* q = scratch.floats(rows * d);
  float* d_out = scratch.floats(rows * d);
  float* d_q = scratch.floats(rows * d);
  float* p = scratch.floats(rows * kKeyRows);
  float* d_p = scratch.floats(rows * kKeyRows);
  float* slope = a.shape.softcap > 0 ? scratch.floats(rows * kKeyRows) : nullptr;
  float* k_buffer = scratch.floats(kKeyRows * d);
  float* v_buffer = scratch.floats(kKeyRows * d);
  load_rows(tile, a.q, a.q_stride, static_cast<float>(a.shape.scale), q);
  load_rows(tile, b.d_out, a.out_stride, 1.0f, d_out);
  std::memset(d_q, 0, static_cast<std::size_t>(rows * d) * sizeof(float));

  const std::int64_t last_key = tile.first_token + tile.tokens;
  for (std::int64_t first = 0; first < last_key; first += kKeyRows) {
    const std::int64_t count = least(kKeyRows, last_key - first);
    if (!any_visible(tile, first, count)) continue;
    const FloatRows k = float_rows(keys_at(a, a.k, tile.batch, tile.kv_head, first), a.kv_stride,
                                   count, d, k_buffer);
    const FloatRows v = float_rows(keys_at(a, a.v, tile.batch, tile.kv_head, first), a.kv_stride,
                                   count, d, v_buffer);
    gemm(Layout::kNT, rows, count, d, q, d, k.data, k.stride, p, count, false);
    bend_scores(tile, first, count, p, slope);
    probabilities(tile, b.lse, first, count, p);
    gemm(Layout::kNT, rows, count, d, d_out, d, v.data, v.stride, d_p, count, false);
    score_gradients(tile, b.delta, count, p, slope, d_p);
    gemm(Layout::kNN, rows, d, count, d_p, count, k.data, k.stride, d_q, d, true);
  }
  const Vec factor = splat(static_cast<float>(a.shape.scale));
  for (std::int64_t row = 0; row < rows; ++row) {
    T* to = b.d_q + tile.offset(row, a.q_stride);
    for_vectors(d, [&](std::int64_t i, auto lanes) {
      store(to + i, load(d_q + row * d + i, lanes) * factor, lanes);
    });
  }
}

template <class T>
void attention_backward_kv(const AttentionBackward<T>& b, std::int64_t task, Scratch& scratch) {
  const AttentionInputs<T>& a = b.in;
  const AttentionShape& shape = a.shape;
  const std::int64_t d = shape.head_dim;
  const std::int64_t pairs = shape.batch * shape.kv_heads;
  const std::int64_t batch = task % pairs / shape.kv_heads;
  const std::int64_t kv_head = task % pairs % shape.kv_heads;
  const std::int64_t first = task / pairs * kKeyRows;  // early keys, seen by most queries, first
  const std::int64_t count = least(kKeyRows, shape.seq - first);
  const std::int64_t most_rows = tile_tokens(shape) * shape.heads / shape.kv_heads;
  float* q = scratch.floats(most_rows * d);
  float* d_out = scratch.floats(most_rows * d);
  float* p = scratch.floats(most_rows * kKeyRows);
  float* d_p = scratch.floats(most_rows * kKeyRows);
  float* slope = shape.softcap > 0 ? scratch.floats(most_rows * kKeyRows) : nullptr;
  float* k_buffer = scratch.floats(kKeyRows * d);
  float* v_buffer = scratch.floats(kKeyRows * d);
  float* d_k = scratch.floats(count * d);
  float* d_v = scratch.floats(count * d);
  std::memset(d_k, 0, static_cast<std::size_t>(count * d) * sizeof(float));
  std::memset(d_v, 0, static_cast<std::size_t>(count * d) * sizeof(float));
  const FloatRows k =
      float_rows(keys_at(a, a.k, batch, kv_head, first), a.kv_stride, count, d, k_buffer);
  const FloatRows v =
      float_rows(keys_at(a, a.v, batch, kv_head, first), a.kv_stride, count, d, v_buffer);

  const std::int64_t tiles = tiles_of(shape.seq, tile_tokens(shape));
  for (std::int64_t index = first / tile_tokens(shape); index < tiles; ++index) {
    const QueryTile<T> tile = query_tile(a, batch, kv_head, index);
    if (!any_visible(tile, first, count)) continue;
    const std::int64_t rows = tile.rows();
    load_rows(tile, a.q, a.q_stride, static_cast<float>(shape.scale), q);
    load_rows(tile, b.d_out, a.out_stride, 1.0f, d_out);
    gemm(Layout::kNT, rows, count, d, q, d, k.data, k.stride, p, count, false);
    bend_scores(tile, first, count, p, slope);
    probabilities(tile, b.lse, first, count, p);
    gemm(Layout::kTN, count, d, rows, p, count, d_out, d, d_v, d, true);
    gemm(Layout::kNT, rows, count, d, d_out, d, v.data, v.stride, d_p, count, false);
    score_gradients(tile, b.delta, count, p, slope, d_p);
    gemm(Layout::kTN, count, d, rows, d_p, count, q, d, d_k, d, true);
  }
  for (std::int64_t key = 0; key < count; ++key) {
    const std::int64_t at =
        (batch * shape.seq + first + key) * a.kv_stride + kv_head * shape.head_dim;
    convert(d_k + key * d, b.d_k + at, d);
    convert(d_v + key * d, b.d_v + at, d);
  }
}

template <class T>
void add_attention_of(TypedKernels<T>& kernels) {
  kernels.attention_forward = &attention_forward<T>;
  kernels.attention_delta = &attention_delta<T>;
  kernels.attention_backward_q = &attention_backward_q<T>;
  kernels.attention_backward_kv = &attention_backward_kv<T>;
}

}  // namespace

void add_attention(Kernels& kernels) {
  add_attention_of(kernels.fp32);
  add_attention_of(kernels.bf16);
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
