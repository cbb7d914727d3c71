// SPDX-License-Identifier: Apache-2.0
// Oracle for causal grouped-query attention: the whole T x T matrix of probabilities, in double.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/arguments.h"

namespace shardwright::kernels::reference {

struct Attention {
  std::vector<double> out;            // [B, T, H, D]
  std::vector<double> lse;            // [B, H, T]
  std::vector<double> probabilities;  // [B, H, T, T]
};
/// q[B, T, H, D], k and v[B, T, Hkv, D]. Query t sees keys first_key[b, t] to t; empty means 0.
Attention attention_forward(const AttentionShape& shape, const std::vector<double>& q,
                            const std::vector<double>& k, const std::vector<double>& v,
                            const std::vector<std::int32_t>& first_key = {});

struct AttentionGradient {
  std::vector<double> d_q, d_k, d_v;
};
AttentionGradient attention_backward(const AttentionShape& shape, const std::vector<double>& q,
                                     const std::vector<double>& k, const std::vector<double>& v,
                                     const Attention& forward, const std::vector<double>& d_out);

}  // namespace shardwright::kernels::reference
