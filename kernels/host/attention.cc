// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/host/simd/kernels.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {
namespace {

std::int64_t query_tasks(const AttentionShape& shape) {
  const std::int64_t tokens = std::max<std::int64_t>(1, kQueryRows / shape.group());
  return ceil_div(shape.seq, tokens) * shape.batch * shape.kv_heads;
}

/// Of ALiBi, by head; none without it.
std::vector<float> slopes_of(const AttentionShape& shape) {
  std::vector<float> slopes;
  for (int head = 0; shape.alibi && head < shape.heads; ++head) {
    slopes.push_back(std::exp2(-8.0f * alibi_share(static_cast<int>(shape.first_head) + head,
                                                   static_cast<int>(shape.alibi_heads()))));
  }
  return slopes;
}

template <class T>
AttentionInputs<T> inputs(const AttentionShape& shape, const AttentionLayout& layout, const T* q,
                          const T* k, const T* v, const std::int32_t* first_key,
                          const std::vector<float>& slopes) {
  return {.shape = shape,
          .q = q,
          .k = k,
          .v = v,
          .q_stride = layout.q_stride,
          .kv_stride = layout.kv_stride,
          .out_stride = layout.out_stride,
          .first_key = first_key,
          .slopes = slopes.empty() ? nullptr : slopes.data()};
}

}  // namespace

void check_attention(const AttentionShape& shape) {
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0 || shape.group() > kQueryRows) {
    throw Error(fmt::format(
        "attention with {} heads on {} key heads, expected a multiple of at most {} times",
        shape.heads, shape.kv_heads, kQueryRows));
  }
  if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim) {
    throw Error(
        fmt::format("head_dim is {}, expected 1 to {} on the host", shape.head_dim, kMaxHeadDim));
  }
}

template <class T>
void attention_forward(Parallel& parallel, const AttentionShape& shape,
                       const AttentionLayout& layout, const T* q, const T* k, const T* v,
                       const std::int32_t* first_key, T* out, float* lse) {
  check_attention(shape);
  const std::vector<float> slopes = slopes_of(shape);
  const AttentionForward<T> tiles{
      .in = inputs(shape, layout, q, k, v, first_key, slopes), .out = out, .lse = lse};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.run(query_tasks(shape), [&](std::int64_t task, Scratch& scratch) {
    kernels.attention_forward(tiles, task, scratch);
  });
}

template <class T>
void attention_backward(Parallel& parallel, const AttentionShape& shape,
                        const AttentionLayout& layout, const T* q, const T* k, const T* v,
                        const std::int32_t* first_key, const T* out, const float* lse,
                        const T* d_out, T* d_q, T* d_k, T* d_v, float* workspace) {
  check_attention(shape);
  const std::vector<float> slopes = slopes_of(shape);
  const AttentionBackward<T> tiles{.in = inputs(shape, layout, q, k, v, first_key, slopes),
                                   .out = out,
                                   .lse = lse,
                                   .d_out = d_out,
                                   .delta = workspace,
                                   .d_q = d_q,
                                   .d_k = d_k,
                                   .d_v = d_v};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(shape.tokens(), 32, [&](std::int64_t begin, std::int64_t end, Scratch&) {
    kernels.attention_delta(tiles, begin, end);
  });
  const std::int64_t q_tasks = query_tasks(shape);
  const std::int64_t kv_tasks = ceil_div(shape.seq, kKeyRows) * shape.batch * shape.kv_heads;
  parallel.run(q_tasks + kv_tasks, [&](std::int64_t task, Scratch& scratch) {
    if (task < kv_tasks) {
      kernels.attention_backward_kv(tiles, task, scratch);
    } else {
      kernels.attention_backward_q(tiles, task - kv_tasks, scratch);
    }
  });
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void attention_forward<T>(Parallel&, const AttentionShape&, const AttentionLayout&,     \
                                     const T*, const T*, const T*, const std::int32_t*, T*,        \
                                     float*);                                                      \
  template void attention_backward<T>(Parallel&, const AttentionShape&, const AttentionLayout&,    \
                                      const T*, const T*, const T*, const std::int32_t*, const T*, \
                                      const float*, const T*, T*, T*, T*, float*);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
