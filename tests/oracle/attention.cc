// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/attention.h"

#include <cmath>

namespace shardwright::kernels::reference {
namespace {

using Numbers = std::vector<double>;

struct Index {
  AttentionShape s;
  std::size_t q(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return static_cast<std::size_t>(((b * s.seq + t) * s.heads + h) * s.head_dim);
  }
  std::size_t kv(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return static_cast<std::size_t>(((b * s.seq + t) * s.kv_heads + h / s.group()) * s.head_dim);
  }
  std::size_t p(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t key) const {
    return static_cast<std::size_t>(((b * s.heads + h) * s.seq + t) * s.seq + key);
  }
};

double dot(const Numbers& a, std::size_t a_at, const Numbers& b, std::size_t b_at,
           std::int64_t size) {
  double result = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) {
    result += a[a_at + i] * b[b_at + i];
  }
  return result;
}

void add_scaled(Numbers& to, std::size_t to_at, double factor, const Numbers& from,
                std::size_t from_at, std::int64_t size) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) {
    to[to_at + i] += factor * from[from_at + i];
  }
}

/// ALiBi's slope of a head as MPT makes them: a list for the next power of two heads, of which
/// every second one comes first when there are too many.
double slope_of(const AttentionShape& s, std::int64_t head) {
  if (!s.alibi) return 0;
  std::size_t power = 1;
  while (power < static_cast<std::size_t>(s.heads)) power *= 2;
  Numbers slopes;
  for (std::size_t k = 1; k <= power; ++k) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(k) / static_cast<double>(power)));
  }
  if (power == static_cast<std::size_t>(s.heads)) return slopes[static_cast<std::size_t>(head)];
  Numbers ordered;
  for (std::size_t k = 1; k < power; k += 2) ordered.push_back(slopes[k]);
  for (std::size_t k = 0; k < power; k += 2) ordered.push_back(slopes[k]);
  return ordered[static_cast<std::size_t>(head)];
}

/// The score before the softmax and its derivative by the product.
struct Score {
  double value, rise;
};

Score score_of(const AttentionShape& s, double product, std::int64_t head, std::int64_t behind) {
  const double fall = slope_of(s, head) * static_cast<double>(behind);
  if (s.softcap == 0) return {product - fall, 1};
  const double share = std::tanh(product / s.softcap);
  return {s.softcap * share - fall, 1 - share * share};
}

/// Calls body(batch, head, query) for all of them.
template <class Body>
void for_queries(const AttentionShape& s, Body body) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t t = 0; t < s.seq; ++t) body(b, h, t);
    }
  }
}

}  // namespace

Attention attention_forward(const AttentionShape& s, const Numbers& q, const Numbers& k,
                            const Numbers& v, const std::vector<std::int32_t>& first_key) {
  const Index index{s};
  Attention result;
  result.out.assign(q.size(), 0.0);
  result.probabilities.assign(static_cast<std::size_t>(s.batch * s.heads * s.seq * s.seq), 0.0);
  for_queries(s, [&](std::int64_t b, std::int64_t h, std::int64_t t) {
    const std::int64_t first =
        first_key.empty() ? 0 : first_key[static_cast<std::size_t>(b * s.seq + t)];
    double total = 0;
    for (std::int64_t key = first; key <= t; ++key) {
      const double product = s.scale * dot(q, index.q(b, t, h), k, index.kv(b, key, h), s.head_dim);
      const double score = score_of(s, product, h, t - key).value;
      total += result.probabilities[index.p(b, h, t, key)] = std::exp(score);
    }
    for (std::int64_t key = first; key <= t; ++key) {
      double& p = result.probabilities[index.p(b, h, t, key)];
      p /= total;
      add_scaled(result.out, index.q(b, t, h), p, v, index.kv(b, key, h), s.head_dim);
    }
    result.lse.push_back(std::log(total));
  });
  return result;
}

AttentionGradient attention_backward(const AttentionShape& s, const Numbers& q, const Numbers& k,
                                     const Numbers& v, const Attention& forward,
                                     const Numbers& d_out) {
  const Index index{s};
  AttentionGradient result{Numbers(q.size(), 0.0), Numbers(k.size(), 0.0), Numbers(v.size(), 0.0)};
  for_queries(s, [&](std::int64_t b, std::int64_t h, std::int64_t t) {
    // Through the softmax: d_score_j = p_j (d_p_j - sum_i p_i d_p_i).
    double mean = 0;
    for (std::int64_t key = 0; key <= t; ++key) {
      const double p = forward.probabilities[index.p(b, h, t, key)];
      mean += p * dot(d_out, index.q(b, t, h), v, index.kv(b, key, h), s.head_dim);
    }
    for (std::int64_t key = 0; key <= t; ++key) {
      const double p = forward.probabilities[index.p(b, h, t, key)];
      const double d_p = dot(d_out, index.q(b, t, h), v, index.kv(b, key, h), s.head_dim);
      const double product = s.scale * dot(q, index.q(b, t, h), k, index.kv(b, key, h), s.head_dim);
      const double d_score = s.scale * p * (d_p - mean) * score_of(s, product, h, t - key).rise;
      add_scaled(result.d_q, index.q(b, t, h), d_score, k, index.kv(b, key, h), s.head_dim);
      add_scaled(result.d_k, index.kv(b, key, h), d_score, q, index.q(b, t, h), s.head_dim);
      add_scaled(result.d_v, index.kv(b, key, h), p, d_out, index.q(b, t, h), s.head_dim);
    }
  });
  return result;
}

}  // namespace shardwright::kernels::reference
