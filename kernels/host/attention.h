// SPDX-License-Identifier: Apache-2.0
// Streaming causal grouped-query attention; memory is linear in the sequence length.
//
// Query t sees keys first_key[t] to t of its own sequence, first_key null meaning 0; with the start
// of each token's document there, packed documents do not see each other. The order of summation is
// by key tiles of 64 in ascending order (told in simd/attention.cc); a sequence's result does not
// depend on the other sequences of the batch.
#pragma once

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// Where q, k and v lie: [tokens, heads, D] with a stride between tokens, so that they may be parts
/// of one packed buffer. k and v share a stride; gradients use the strides of what they belong to.
struct AttentionLayout {
  std::int64_t q_stride = 0;
  std::int64_t kv_stride = 0;
  std::int64_t out_stride = 0;  // of the output and its gradient

  /// Separate contiguous buffers.
  static AttentionLayout contiguous(const AttentionShape& shape) {
    return {shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim,
            shape.heads * shape.head_dim};
  }
};

/// Throws Error when heads do not divide, head_dim exceeds 256 or a key head serves more than 128
/// query heads.
void check_attention(const AttentionShape& shape);

/// out[tokens, H, D] and lse[B, H, T], the logarithm of the sum of exponentiated scores. first_key
/// has [tokens] entries, each from 0 to the token's place in its sequence.
template <class T>
void attention_forward(Parallel& parallel, const AttentionShape& shape,
                       const AttentionLayout& layout, const T* q, const T* k, const T* v,
                       const std::int32_t* first_key, T* out, float* lse);

/// Overwrites d_q, d_k and d_v. The workspace holds batch * heads * seq floats.
template <class T>
void attention_backward(Parallel& parallel, const AttentionShape& shape,
                        const AttentionLayout& layout, const T* q, const T* k, const T* v,
                        const std::int32_t* first_key, const T* out, const float* lse,
                        const T* d_out, T* d_q, T* d_k, T* d_v, float* workspace);

}  // namespace shardwright::kernels::host
