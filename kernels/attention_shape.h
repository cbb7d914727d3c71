// SPDX-License-Identifier: Apache-2.0
// The shape of causal grouped-query attention, shared by the oracle, the host and device kernels.
#pragma once

#include <cstdint>

namespace shardwright::kernels {

/// B sequences of T tokens; H query heads, Hkv key and value heads of D numbers. Query head h reads
/// key head h / (H / Hkv).
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

}  // namespace shardwright::kernels
