// SPDX-License-Identifier: Apache-2.0
// What layers have in place of attention over all tokens before: a state that every token updates,
// or a short convolution. With V = value_heads * value_dim and K = key_heads * key_dim their parts
// are a product in, a causal convolution, the state, a gate with or without a norm, a product out:
//
//                   product in               convolved  state               beside them
//   Mamba           2 V                      V          N x V               steps, B and C by way
//   of
//                                                                           a vector of rank + 2 N
//   Mamba-2         2 V + 2 K + heads        V + 2 K    key_dim x V         -
//   gated delta net 2 V + 2 K + 2 heads      V + 2 K    key_dim x V         -
//   Kimi delta att. V + 2 K + heads          V + 2 K    key_dim x V         decays (K) and gates
//   (V)
//                   + K + V without a rank                                  by way of two of `rank`
//   lightning att.  2 V + 2 K                -          key_dim x V         -
//   short conv.     3 V                      V          -                   -
//
// Mamba (Gu and Dao 2023, arXiv 2312.00752) has one head of V channels and N = key_dim; Mamba-2
// (Dao and Gu 2024, arXiv 2405.21060) calls key heads groups, and its two K are B and C; gated
// delta nets (Yang et al. 2024, arXiv 2412.06464) and Kimi delta attention (2025, arXiv 2510.26692)
// have queries and keys, as has lightning attention (MiniMax-01, arXiv 2501.08313); short
// convolutions are those of LFM2 (arXiv 2511.23404), between two gates.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardwright {

enum class RecurrenceKind : std::uint8_t {
  kMamba1,
  kMamba2,
  kGatedDelta,
  kKimiDelta,
  kLightning,
  kShortConvolution
};
/// As in "layers with Mamba-2".
std::string_view name_of(RecurrenceKind kind);

struct Recurrence {
  RecurrenceKind kind = RecurrenceKind::kMamba2;
  std::int64_t value_heads = 0;  // 0: no layer has one
  std::int64_t value_dim = 0;
  std::int64_t key_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t taps = 4;     // of the convolution; 0: none
  std::int64_t chunk = 256;  // tokens between two states that are written
  std::int64_t rank = 0;     // of the vectors that steps, or decays and gates, are made of
  bool norm = true;          // of what comes out, before its gate; Mamba and convolutions have none
  bool inner_norms = false;  // jamba: of the step's vector, B and C; Ling: of queries and keys
  bool convolution_bias = false;
  bool bias = false;  // of the products in and out
  bool operator==(const Recurrence&) const = default;

  std::int64_t value_width() const { return value_heads * value_dim; }
  std::int64_t key_width() const { return key_heads * key_dim; }
  /// Channels that are convolved or, where nothing is, activated.
  std::int64_t convolved() const;
  std::int64_t product_width() const;
  /// Channels of the vectors of `rank`, with Mamba's B and C.
  std::int64_t latent_width() const;
  /// Channels that are made of them.
  std::int64_t up_width() const;
  /// Parameters beside matrices, convolution and norms: A, D, dt.
  std::int64_t vector_parameters() const;
  std::int64_t norm_width() const;
  std::int64_t inner_norm_width() const;
  /// Heads are independent, so that tensor and context ranks may share them. Frameworks do so for
  /// Mamba-2 and for delta rules (Megatron-LM core/ssm).
  bool divides_heads() const;
  /// Floating-point operations of one token in the forward pass beside matrices: of a number of the
  /// state 7 in Mamba-2 and 8 in delta nets, as Megatron-LM counts (training.py,
  /// num_floating_point_operations), 9 in Mamba, as its authors do (selective_scan_flop_jit), and 5
  /// in lightning attention, which neither computes a step nor asks what the state knows; and the
  /// convolution's.
  double flops() const;
};

}  // namespace shardwright
