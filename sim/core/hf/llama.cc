// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/llama.h"

#include <fmt/core.h>

#include <cmath>
#include <string>
#include <string_view>

#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/rope.h"

namespace shardwright::hf {

Model read_llama_like(const JsonReader& config, const std::string& family,
                      const LlamaLike& defaults) {
  Model m;
  m.family = family;
  m.hidden = size(config, "hidden_size", model_limits::kHidden);
  m.ffn = size(config, defaults.ffn_key, model_limits::kFfn);
  m.layers = defaults.layers > 0
                 ? size_or(config, "num_hidden_layers", defaults.layers, model_limits::kLayers)
                 : size(config, "num_hidden_layers", model_limits::kLayers);
  m.heads = size(config, "num_attention_heads", model_limits::kHeads);
  m.kv_heads = size_or(config, "num_key_value_heads", m.heads, model_limits::kHeads);
  if (m.heads % m.kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("a divisor of the {} num_attention_heads", m.heads));
  }
  m.head_dim = defaults.head_dim;
  if (config.has("head_dim")) m.head_dim = size(config, "head_dim", model_limits::kHeadDim);
  if (m.head_dim == 0) m.head_dim = divided_head_dim(config, m, "num_attention_heads");
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions =
      size_or(config, "max_position_embeddings", defaults.max_positions, model_limits::kPositions);
  if (!defaults.mixes) set_sliding_window(config, m);
  if (!defaults.activation_key.empty()) {
    m.activation = activation(config, defaults.activation_key, defaults.activation);
  }
  m.norm_eps = norm_eps(config, defaults.eps_key, defaults.eps);
  m.tied_head = config.optional<bool>("tie_word_embeddings", defaults.tied);
  m.rope = read_rope(config, m.head_dim,
                     {.fraction = defaults.rotary_fraction,
                      .by_layer = defaults.angles_by_layer,
                      .sections = defaults.angle_sections});
  return m;
}

Model read_planned(const JsonReader& config, const std::string& family, const LlamaLike& defaults,
                   std::string_view why) {
  Model m = read_llama_like(config, family, defaults);
  m.planning_only = why;
  return m;
}

void set_attention_bias(const JsonReader& config, Model& m, bool fallback) {
  m.qkv_bias = m.attention_out_bias = config.optional<bool>("attention_bias", fallback);
}

namespace {

/// Softcaps are off when null, and the class's default when absent.
double softcap(const JsonReader& config, std::string_view key, double fallback) {
  if (!present(config, key)) return fallback;
  return config.optional<double>(key, 0.0, above(0.0));
}

}  // namespace

Model read_llama(const JsonReader& config) {
  Model m = read_llama_like(config, "llama", {});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

Model read_mistral(const JsonReader& config) {
  Model m = read_llama_like(config, "mistral", {.max_positions = 131072});
  refuse(config, "attention_bias", 0);
  refuse(config, "mlp_bias", 0);
  return m;
}

Model read_qwen2(const JsonReader& config) {
  Model m = read_llama_like(config, "qwen2", {.max_positions = 32768});
  m.qkv_bias = true;
  refuse(config, "mlp_bias", 0);
  return m;
}

Model read_qwen3(const JsonReader& config) {
  Model m = read_llama_like(config, "qwen3", {.max_positions = 32768, .head_dim = 128});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  refuse(config, "mlp_bias", 0);
  return m;
}

Model read_phi3(const JsonReader& config) {
  Model m = read_llama_like(config, "phi3", {.max_positions = 4096, .eps = 1e-5});
  m.fused_qkv = m.fused_gate_up = true;
  // phi3 counts the positions before the current one: 2047 in a model made for 2048.
  if (m.sliding_window > 0) ++m.sliding_window;
  refuse(config, "attention_bias", 0);
  refuse(config, "mlp_bias", 0);
  return m;
}

namespace {

Model read_gemma_like(const JsonReader& config, const std::string& family,
                      std::int64_t max_positions) {
  Model m = read_llama_like(config, family,
                            {.max_positions = max_positions,
                             .activation = "gelu",
                             .tied = true,
                             .head_dim = 256,
                             .angles_by_layer = family == "gemma3_text"});
  set_attention_bias(config, m, false);
  // Files that say "gelu" mean the tanh form; hidden_activation, where given, is what counts.
  if (m.activation == Activation::kGelu) m.activation = Activation::kGeluTanh;
  if (config.has("hidden_activation")) m.activation = activation(config, "hidden_activation", "");
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  refuse(config, "mlp_bias", 0);
  return m;
}

}  // namespace

Model read_gemma(const JsonReader& config) {
  return read_gemma_like(config, "gemma", 8192);
}

Model read_gemma2_like(const JsonReader& config, const std::string& family,
                       std::int64_t max_positions) {
  Model m = read_gemma_like(config, family, max_positions);
  m.norms_per_layer = 4;
  const bool capped = family == "gemma2" || family == "vaultgemma";
  m.attention_softcap = softcap(config, "attn_logit_softcapping", capped ? 50.0 : 0.0);
  m.logit_softcap = softcap(config, "final_logit_softcapping", capped ? 30.0 : 0.0);
  const double scalar = config.optional<double>("query_pre_attn_scalar", 256.0, above(0.0));
  if (scalar != static_cast<double>(m.head_dim)) m.attention_scale = 1.0 / std::sqrt(scalar);
  return m;
}

Model read_gemma2(const JsonReader& config) {
  return read_gemma2_like(config, "gemma2", 8192);
}

}  // namespace shardwright::hf
