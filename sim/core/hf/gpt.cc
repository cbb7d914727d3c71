// SPDX-License-Identifier: Apache-2.0
// Configs of the families with LayerNorm and a plain MLP: gpt2, gpt_bigcode, gpt_neox and mpt.
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <string_view>

#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/rope.h"

namespace shardwright::hf {
namespace {

/// attn_config of mpt: key/value heads, positions and what is not modelled.
void read_mpt_attention(const JsonReader& config, Model& m) {
  m.position = Position::kAlibi;
  m.fused_qkv = true;
  const auto attention = config.find_object("attn_config");
  if (!attention) return;
  if (attention->has("attn_type")) {
    const std::string type = attention->require_choice(
        "attn_type", {"multihead_attention", "multiquery_attention", "grouped_query_attention"});
    if (type == "multiquery_attention") m.kv_heads = 1;
    if (type == "grouped_query_attention") {
      m.kv_heads = size(*attention, "kv_n_heads", model_limits::kHeads);
      if (m.heads % m.kv_heads != 0) {
        attention->fail("kv_n_heads", fmt::format("a divisor of the {} n_heads", m.heads));
      }
    }
  }
  if (!attention->optional<bool>("alibi", true)) {
    m.position = Position::kLearned;
    if (!config.optional<bool>("learned_pos_emb", true)) {
      config.fail("learned_pos_emb", "true, or alibi in attn_config");
    }
  }
  m.fused_qkv = attention->optional<bool>("fused_qkv", true);
  m.attention_scale = attention->optional<double>("softmax_scale", 0.0, above(0.0));
  const double steepest = attention->optional<double>("alibi_bias_max", 8.0, above(0.0));
  if (steepest != 8.0 && m.position == Position::kAlibi) {
    m.planning_only = "has slopes of ALiBi that do not end at 2^-8";
  }
  const auto window = attention->optional<std::int64_t>(
      "sliding_window_size", -1, between<std::int64_t>(-1, model_limits::kPositions));
  if (window > 0) m.sliding_window = window;
  for (const NeutralKey& entry :
       {NeutralKey{"rope", 0}, NeutralKey{"qk_ln", 0}, NeutralKey{"qk_gn", 0},
        NeutralKey{"clip_qkv", 0}, NeutralKey{"prefix_lm", 0},
        NeutralKey{"attn_uses_sequence_id", 0}}) {
    refuse(*attention, entry.key, entry.neutral);
  }
}

void read_mpt_ffn(const JsonReader& config, Model& m) {
  const double ratio = config.optional<double>("expansion_ratio", 4.0, above(0.0));
  const double width = std::floor(ratio * static_cast<double>(m.hidden));
  if (width < 1 || width > static_cast<double>(model_limits::kFfn)) {
    config.fail("expansion_ratio",
                fmt::format("a ratio that makes an MLP of 1 to {}", model_limits::kFfn));
  }
  m.ffn = static_cast<std::int64_t>(width);
  m.gated_mlp = false;
  m.activation = Activation::kGelu;
  const auto ffn = config.find_object("ffn_config");
  if (!ffn) return;
  m.ffn = size_or(*ffn, "ffn_hidden_size", m.ffn, model_limits::kFfn);
  if (ffn->has("ffn_type"))
    m.gated_mlp = ffn->require_choice("ffn_type", {"mptmlp", "mptglu"}) == "mptglu";
  if (const auto act = ffn->find_object("ffn_act_fn"))
    m.activation = activation(*act, "name", "gelu");
}

}  // namespace

Model read_gpt2(const JsonReader& config) {
  Model m;
  m.family = "gpt2";
  m.hidden = size(config, "n_embd", model_limits::kHidden);
  m.layers = size(config, "n_layer", model_limits::kLayers);
  m.heads = size(config, "n_head", model_limits::kHeads);
  m.kv_heads = m.heads;
  m.head_dim = divided_head_dim(config, m, "n_head");
  m.ffn = size_or(config, "n_inner", 4 * m.hidden, model_limits::kFfn);
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = size_or(config, "n_positions", 1024, model_limits::kPositions);
  m.position = Position::kLearned;
  m.gated_mlp = false;
  m.activation = activation(config, "activation_function", "gelu_new");
  m.norm = Normalization::kLayerNorm;
  m.norm_bias = m.qkv_bias = m.attention_out_bias = m.mlp_bias = true;
  m.norm_eps = norm_eps(config, "layer_norm_epsilon", 1e-5);
  m.fused_qkv = true;
  m.tied_head = config.optional<bool>("tie_word_embeddings", true);
  set_sliding_window(config, m);
  refuse(config, "scale_attn_weights", 1);
  refuse(config, "scale_attn_by_inverse_layer_idx", 0);
  refuse(config, "reorder_and_upcast_attn", 0);
  return m;
}

Model read_gpt_bigcode(const JsonReader& config) {
  Model m = read_gpt2(config);
  m.family = "gpt_bigcode";
  if (config.optional<bool>("multi_query", true)) {
    m.kv_heads = 1;
  } else {
    m.planning_only = "stores query, key and value of a head side by side";
  }
  // Said once more, and in what precision scores are kept for the softmax: here always in fp32.
  for (const char* unused :
       {"num_key_value_heads", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"}) {
    static_cast<void>(config.has(unused));
  }
  return m;
}

Model read_gpt_neox(const JsonReader& config) {
  Model m;
  m.family = "gpt_neox";
  m.hidden = size(config, "hidden_size", model_limits::kHidden);
  m.ffn = size(config, "intermediate_size", model_limits::kFfn);
  m.layers = size(config, "num_hidden_layers", model_limits::kLayers);
  m.heads = size(config, "num_attention_heads", model_limits::kHeads);
  m.kv_heads = m.heads;
  m.head_dim = divided_head_dim(config, m, "num_attention_heads");
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = size_or(config, "max_position_embeddings", 2048, model_limits::kPositions);
  m.gated_mlp = false;
  m.activation = activation(config, "hidden_act", "gelu");
  m.norm = Normalization::kLayerNorm;
  m.norm_bias = m.mlp_bias = true;
  m.qkv_bias = m.attention_out_bias = config.optional<bool>("attention_bias", true);
  m.norm_eps = norm_eps(config, "layer_norm_eps", 1e-5);
  m.fused_qkv = true;
  m.parallel_residual = config.optional<bool>("use_parallel_residual", true);
  m.tied_head = config.optional<bool>("tie_word_embeddings", false);
  set_sliding_window(config, m);
  m.rope =
      read_rope(config, m.head_dim,
                {.theta_key = "rotary_emb_base", .fraction_key = "rotary_pct", .fraction = 0.25});
  return m;
}

Model read_mpt(const JsonReader& config) {
  Model m;
  m.family = "mpt";
  m.hidden = size(config, "d_model", model_limits::kHidden);
  m.layers = size(config, "n_layers", model_limits::kLayers);
  m.heads = size(config, "n_heads", model_limits::kHeads);
  m.kv_heads = m.heads;
  m.head_dim = divided_head_dim(config, m, "n_heads");
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = size_or(config, "max_seq_len", 2048, model_limits::kPositions);
  set_sliding_window(config, m);
  read_mpt_attention(config, m);
  read_mpt_ffn(config, m);
  m.norm = Normalization::kLayerNorm;
  if (config.has("norm_type")) {
    const std::string norm = config.require_choice(
        "norm_type", {"low_precision_layernorm", "layernorm", "low_precision_rmsnorm", "rmsnorm"});
    if (norm.ends_with("rmsnorm")) m.norm = Normalization::kRmsNorm;
  }
  const bool biased = !config.optional<bool>("no_bias", true);
  m.norm_bias = biased && m.norm == Normalization::kLayerNorm;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = biased;
  m.norm_eps = norm_eps(config, "layer_norm_epsilon", 1e-5);
  m.tied_head = config.optional<bool>("tie_word_embeddings", true);
  refuse(config, "embedding_fraction", 1);
  refuse(config, "block_overrides", 0);
  return m;
}

}  // namespace shardwright::hf
