// SPDX-License-Identifier: Apache-2.0
// What configs of llama and its relatives share (RMSNorm, gated MLP, RoPE), and families without
// routed experts whose layers all attend.
#pragma once

#include <string>
#include <string_view>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// What a family's configuration class assumes where a file says nothing.
struct LlamaLike {
  std::int64_t max_positions = 2048;
  double eps = 1e-6;
  std::string_view activation = "silu";
  std::string_view activation_key = "hidden_act";  // "": the family reads it itself
  bool tied = false;
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double rotary_fraction = 1.0;
  bool angles_by_layer = false;  // RopeKeys
  bool angle_sections = false;
  std::string_view ffn_key = "intermediate_size";
  std::string_view eps_key = "rms_norm_eps";
  std::int64_t layers = 0;  // of files that do not say how many
  bool mixes = false;       // layer_types says which layers attend, and the family reads it
};
/// The keys that llama and its relatives share.
Model read_llama_like(const JsonReader& config, const std::string& family,
                      const LlamaLike& defaults);
/// The same of a family that is planned only, and why.
Model read_planned(const JsonReader& config, const std::string& family, const LlamaLike& defaults,
                   std::string_view why);
/// attention_bias: of the four products of attention.
void set_attention_bias(const JsonReader& config, Model& m, bool fallback);
/// gemma and what gemma2 and gemma3 share: four norms a layer, a scale and caps of scores.
Model read_gemma2_like(const JsonReader& config, const std::string& family,
                       std::int64_t max_positions);

}  // namespace shardwright::hf
