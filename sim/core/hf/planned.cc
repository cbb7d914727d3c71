// SPDX-License-Identifier: Apache-2.0
// Configs of families that planners may use and most of which the executor does not run: their
// arithmetic is that of the others, down to the parameter, but for details that cost nothing.
//
// Defaults are those of the configuration classes in Transformers 4.5x
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them.
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <string_view>

#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"
#include "sim/core/hf/rope.h"

namespace shardwright::hf {
namespace {

void set_layer_norm(const JsonReader& config, Model& m, std::string_view eps_key, bool bias) {
  m.norm = Normalization::kLayerNorm;
  m.norm_bias = bias;
  m.norm_eps = norm_eps(config, eps_key, 1e-5);
}

}  // namespace

Model read_olmo2(const JsonReader& config) {
  Model m = read_planned(config, "olmo2", {.eps = 1e-5},
                         "normalises what its blocks put out and queries and keys as a whole");
  set_attention_bias(config, m, false);
  m.qk_norm = m.qk_norm_whole = true;
  return m;
}

Model read_smollm3(const JsonReader& config) {
  Model m = read_planned(config, "smollm3", {.max_positions = 32768, .tied = true},
                         "leaves out RoPE in some layers");
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

Model read_granite(const JsonReader& config) {
  Model m = read_planned(config, "granite", {}, "multiplies embeddings, scores and residuals");
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

Model read_cohere(const JsonReader& config) {
  Model m = read_planned(config, "cohere", {.max_positions = 8192, .tied = true},
                         "has LayerNorm without bias and parallel residuals");
  set_attention_bias(config, m, false);
  set_layer_norm(config, m, "layer_norm_eps", false);
  m.parallel_residual = true;
  m.norms_per_layer = 1;
  m.qk_norm = m.qk_norm_whole = config.optional<bool>("use_qk_norm", false);
  return m;
}

Model read_glm(const JsonReader& config) {
  Model m = read_llama_like(
      config, "glm",
      {.max_positions = 131072, .eps = 1.5625e-7, .head_dim = 128, .rotary_fraction = 0.5});
  m.qkv_bias = config.optional<bool>("attention_bias", false);
  m.fused_gate_up = true;
  return m;
}

Model read_glm4(const JsonReader& config) {
  Model m = read_glm(config);
  m.family = "glm4";
  m.norms_per_layer = 4;
  return m;
}

Model read_stablelm(const JsonReader& config) {
  Model m = read_llama_like(config, "stablelm", {.max_positions = 4096, .rotary_fraction = 0.25});
  m.qkv_bias = config.optional<bool>("use_qkv_bias", false);
  set_layer_norm(config, m, "layer_norm_eps", true);
  m.parallel_residual = config.optional<bool>("use_parallel_residual", false);
  m.norms_per_layer = m.parallel_residual ? 1 : 2;
  m.qk_norm = m.qk_norm_whole = config.optional<bool>("qk_layernorm", false);
  if (m.qk_norm) m.planning_only = "normalises queries and keys as a whole";
  if (m.parallel_residual) m.planning_only = "has one norm of parallel residuals";
  return m;
}

Model read_nemotron(const JsonReader& config) {
  Model m = read_planned(config, "nemotron",
                         {.max_positions = 4096, .activation_key = "", .rotary_fraction = 0.5},
                         "squares its ReLU and has LayerNorm");
  config.require_choice("hidden_act", {"relu2"});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  set_layer_norm(config, m, "norm_eps", true);
  m.gated_mlp = false;
  m.activation = Activation::kRelu;
  return m;
}

Model read_starcoder2(const JsonReader& config) {
  Model m =
      read_llama_like(config, "starcoder2",
                      {.max_positions = 4096, .activation = "gelu_pytorch_tanh", .tied = true});
  set_layer_norm(config, m, "norm_epsilon", true);
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = config.optional<bool>("use_bias", true);
  m.gated_mlp = false;
  return m;
}

Model read_gemma3(const JsonReader& config) {
  Model m = read_gemma2_like(config, "gemma3_text", 131072);
  m.planning_only = "has two sets of RoPE frequencies";
  m.qk_norm = true;
  return m;
}

Model read_falcon(const JsonReader& config) {
  Model m;
  m.family = "falcon";
  m.planning_only = "has LayerNorm";
  m.hidden = size(config, "hidden_size", model_limits::kHidden);
  m.layers = size(config, "num_hidden_layers", model_limits::kLayers);
  m.heads = size(config, "num_attention_heads", model_limits::kHeads);
  m.head_dim = divided_head_dim(config, m, "num_attention_heads");
  const bool recent = config.optional<bool>("new_decoder_architecture", false);
  const bool multi_query = config.optional<bool>("multi_query", true);
  static_cast<void>(config.has("num_kv_heads"));  // in older files without effect
  m.kv_heads = recent        ? size_or(config, "num_kv_heads", m.heads, m.heads)
               : multi_query ? 1
                             : m.heads;
  m.ffn = size_or(config, "ffn_hidden_size", 4 * m.hidden, model_limits::kFfn);
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = size_or(config, "max_position_embeddings", 2048, model_limits::kPositions);
  m.gated_mlp = false;
  m.activation = activation(config, "activation", "gelu");
  set_layer_norm(config, m, "layer_norm_epsilon", true);
  const bool biased = config.optional<bool>("bias", false);
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = biased;
  m.fused_qkv = true;
  m.parallel_residual = recent || config.optional<bool>("parallel_attn", true);
  const std::int64_t parallel_norms = size_or(config, "num_ln_in_parallel_attn", recent ? 2 : 1, 2);
  m.norms_per_layer = m.parallel_residual ? static_cast<int>(parallel_norms) : 2;
  m.tied_head = config.optional<bool>("tie_word_embeddings", true);
  if (config.optional<bool>("alibi", false)) {
    m.position = Position::kAlibi;
  } else {
    m.rope = read_rope(config, m.head_dim, {});
  }
  return m;
}

}  // namespace shardwright::hf
