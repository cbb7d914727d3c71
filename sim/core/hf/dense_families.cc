// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/dense_families.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/hf/expert_families.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/recurrent_families.h"
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

// Configs of models with experts whose attention has gates and windows in most layers, with
// defaults of the configuration classes in Transformers 5.24; sizes of experts must be in the file.
// The bias that balances experts is a parameter there.

namespace {

constexpr std::string_view kSliding = "sliding_attention", kWhole = "full_attention";

Channels channels_of(std::int64_t layer, std::int64_t dense) {
  return layer < dense ? Channels::kMlp : Channels::kExperts;
}

/// A form of attention for each number of heads that layers have, with the window or without.
void set_forms_by_heads(const JsonReader& config, Model& m,
                        const std::vector<std::int64_t>& heads) {
  for (std::size_t layer = 0; layer < m.kinds.size(); ++layer) {
    LayerForm form = {heads[layer], m.kv_heads, m.head_dim, m.kinds[layer].form == 1, false};
    if (form.heads % form.kv_heads != 0)
      config.fail("num_attention_heads_per_layer",
                  fmt::format("multiples of the {} key and value heads", m.kv_heads));
    auto at = std::find(m.forms.begin(), m.forms.end(), form);
    if (at == m.forms.end()) at = m.forms.insert(at, form);
    if (m.forms.size() >= kMostForms) {
      config.fail("num_attention_heads_per_layer",
                  "one number for layers with a window and one for those without");
    }
    m.windowed_layers += form.windowed ? 1 : 0;
    m.kinds[layer].form = static_cast<std::uint8_t>(at - m.forms.begin() + 1);
  }
}

}  // namespace

/// Trinity: a gate for every channel; every fourth layer sees all.
Model read_afmoe(const JsonReader& config) {
  Model m = read_with_experts(
      config, "afmoe", {.max_positions = 16384, .eps = 1e-5, .head_dim = 128, .mixes = true});
  set_attention_bias(config, m, false);
  m.qk_norm = m.attention_gate = m.experts.router_bias = true;
  m.norms_per_layer = 4;
  if (config.optional<bool>("mup_enabled", false))
    m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = m.experts.ffn * config.optional<std::int64_t>(
                                             "num_shared_experts", 2, between<std::int64_t>(0, 64));
  m.sliding_window = size_or(config, "sliding_window", 1024, model_limits::kPositions);
  const auto dense =
      config.optional<std::int64_t>("num_dense_layers", 1, between<std::int64_t>(0, m.layers - 1));
  const std::int64_t every =
      size_or(config, "global_attn_every_n_layers", 4, model_limits::kLayers);
  set_kinds(config, m, "layer_types",
            {{kSliding, Mixer::kAttention, {}, 1}, {kWhole, Mixer::kAttention, {}, 2}},
            [&](std::int64_t layer) {
              const bool full = (layer + 1) % every == 0;
              return LayerKind{Mixer::kAttention, channels_of(layer, dense),
                               static_cast<std::uint8_t>(full ? 2 : 1)};
            });
  set_forms_by_heads(config, m, std::vector<std::int64_t>(m.kinds.size(), m.heads));
  return m;
}

/// Gates for heads or channels; layers may differ in how many heads they have.
Model read_laguna(const JsonReader& config) {
  Model m = read_with_experts(
      config, "laguna",
      {.max_positions = 131072, .head_dim = 128, .angles_by_layer = true, .mixes = true});
  set_attention_bias(config, m, false);
  m.qk_norm = m.experts.router_bias = true;
  const bool named = config.raw().contains("gating") && config.raw()["gating"].is_string();
  if (named) config.require_choice("gating", {"per-head", "per-channel"});
  m.attention_gate = named && config.require<std::string>("gating") == "per-channel";
  m.head_gate = !m.attention_gate && (named || config.optional<bool>("gating", true));
  if (!m.attention_gate && !m.head_gate) m.attention_gate = true;  // false: of every channel
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  m.sliding_window = size_or(config, "sliding_window", 512, model_limits::kPositions);
  const std::int64_t dense = leading_dense_layers(config, "first_k_dense_replace", 1);
  set_kinds(config, m, "layer_types",
            {{kSliding, Mixer::kAttention, {}, 1}, {kWhole, Mixer::kAttention, {}, 2}},
            [&](std::int64_t layer) {
              return LayerKind{Mixer::kAttention, channels_of(layer, dense), 2};
            });
  std::vector<std::int64_t> heads(m.kinds.size(), m.heads);
  if (const auto given = config.find_array("num_attention_heads_per_layer")) {
    if (given->size() != heads.size()) {
      config.fail("num_attention_heads_per_layer",
                  fmt::format("a number for each of the {} layers", m.layers));
    }
    std::transform(given->begin(), given->end(), heads.begin(), [](const JsonReader& each) {
      return each.value<std::int64_t>(between<std::int64_t>(1, model_limits::kHeads));
    });
  }
  set_forms_by_heads(config, m, heads);
  return m;
}

// Configs of the families with LayerNorm and a plain MLP: gpt2, gpt_bigcode, gpt_neox and mpt.

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

// Configs of families of 2025 and 2026 without experts that are made of what others have: norms of
// queries and keys, windows in some layers, multipliers. Most are planned only.
//
// Defaults are those of the configuration classes in Transformers 5.23
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them.

namespace {

constexpr std::string_view kNoKernels = "is of a family that is planned only";

}  // namespace

Model read_olmo3(const JsonReader& config) {
  Model m =
      read_planned(config, "olmo3", {.max_positions = 2048, .eps = 1e-5, .angles_by_layer = true},
                   "normalises what its blocks put out and queries and keys as a whole");
  set_attention_bias(config, m, false);
  m.qk_norm = m.qk_norm_whole = true;
  return m;
}

Model read_exaone4(const JsonReader& config) {
  Model m = read_planned(config, "exaone4", {.max_positions = 2048, .eps = 1e-5},
                         "normalises what its blocks put out");
  m.qk_norm = true;
  return m;
}

Model read_seed_oss(const JsonReader& config) {
  Model m = read_llama_like(config, "seed_oss", {.max_positions = 524288, .head_dim = 128});
  m.qkv_bias = config.optional<bool>("attention_bias", true);
  m.attention_out_bias = config.optional<bool>("attention_out_bias", false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

Model read_ernie4_5(const JsonReader& config) {
  Model m = read_llama_like(config, "ernie4_5",
                            {.max_positions = 131072, .eps = 1e-5, .tied = true, .head_dim = 128});
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = config.optional<bool>("use_bias", false);
  return m;
}

Model read_hunyuan_v1_dense(const JsonReader& config) {
  Model m = read_planned(config, "hunyuan_v1_dense", {.max_positions = 2048, .eps = 1e-5},
                         "normalises queries and keys behind RoPE");
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  return m;
}

Model read_arcee(const JsonReader& config) {
  Model m =
      read_planned(config, "arcee", {.max_positions = 4096, .eps = 1e-5, .activation_key = ""},
                   "squares its ReLU");
  config.require_choice("hidden_act", {"relu2"});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.gated_mlp = false;
  m.activation = Activation::kRelu;
  return m;
}

Model read_helium(const JsonReader& config) {
  Model m =
      read_llama_like(config, "helium", {.max_positions = 4096, .eps = 1e-8, .head_dim = 128});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

Model read_ministral(const JsonReader& config) {
  return read_llama_like(config, "ministral", {.max_positions = 131072});
}

Model read_ministral3(const JsonReader& config) {
  return read_planned(config, "ministral3", {.max_positions = 262144, .eps = 1e-5, .head_dim = 128},
                      "scales queries by their position");
}

Model read_cohere2(const JsonReader& config) {
  Model m = read_planned(config, "cohere2", {.max_positions = 8192, .tied = true},
                         "has LayerNorm without bias and parallel residuals");
  set_attention_bias(config, m, false);
  m.norm = Normalization::kLayerNorm;
  m.norm_eps = norm_eps(config, "layer_norm_eps", 1e-5);
  m.parallel_residual = true;
  m.norms_per_layer = 1;
  return m;
}

Model read_cwm(const JsonReader& config) {
  return read_llama_like(config, "cwm", {.max_positions = 131072, .eps = 1e-5, .head_dim = 128});
}

namespace {

/// Llama with a name of its own.
Model read_renamed_llama(const JsonReader& config, const std::string& family,
                         std::int64_t max_positions) {
  Model m = read_planned(
      config, family, {.max_positions = max_positions, .eps = 1e-5, .head_dim = 128}, kNoKernels);
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  return m;
}

}  // namespace

Model read_iquestcoder(const JsonReader& config) {
  return read_renamed_llama(config, "iquestcoder", 131072);
}

Model read_internlm3(const JsonReader& config) {
  Model m = read_renamed_llama(config, "internlm3", 32768);
  refuse(config, "qkv_bias", 0);
  refuse(config, "bias", 0);
  return m;
}

Model read_mimo(const JsonReader& config) {
  Model m = read_planned(config, "mimo", {.max_positions = 32768}, kNoKernels);
  m.qkv_bias = config.optional<bool>("attention_bias", true);
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_hyperclovax(const JsonReader& config) {
  Model m = read_planned(config, "hyperclovax", {}, "multiplies embeddings, scores and residuals");
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.norms_per_layer = config.optional<bool>("use_post_norm", true) ? 4 : 2;
  return m;
}

Model read_granite_swa(const JsonReader& config) {
  Model m = read_planned(config, "granite_swa", {.max_positions = 8192, .eps = 1e-5, .tied = true},
                         "multiplies embeddings, scores and residuals");
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.attention_sinks = true;
  return m;
}

Model read_jais2(const JsonReader& config) {
  Model m = read_planned(config, "jais2", {.max_positions = 8192, .activation_key = ""},
                         "squares its ReLU and has LayerNorm");
  config.require_choice("hidden_act", {"relu2"});
  set_attention_bias(config, m, true);
  m.mlp_bias = config.optional<bool>("mlp_bias", true);
  m.norm = Normalization::kLayerNorm;
  m.norm_bias = true;
  m.norm_eps = norm_eps(config, "layer_norm_eps", 1e-5);
  m.gated_mlp = false;
  m.activation = Activation::kRelu;
  return m;
}

Model read_vaultgemma(const JsonReader& config) {
  Model m = read_gemma2_like(config, "vaultgemma", 8192);
  m.norms_per_layer = 2;
  return m;
}

Model read_qwen3_vl_text(const JsonReader& config) {
  Model m = read_llama_like(config, "qwen3",
                            {.max_positions = 128000, .head_dim = 128, .angle_sections = true});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  m.planning_only = "is the text part of a model for pictures";
  return m;
}

Model read_qwen2_vl_text(const JsonReader& config) {
  Model m = read_llama_like(config, "qwen2", {.max_positions = 32768, .angle_sections = true});
  m.qkv_bias = true;
  m.planning_only = "is the text part of a model for pictures";
  return m;
}

// Configs of families that planners may use and most of which the executor does not run: their
// arithmetic is that of the others, down to the parameter, but for details that cost nothing.
//
// Defaults are those of the configuration classes in Transformers 4.5x
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them.

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

// Configs of gemma4, whose full and windowed layers have heads of other sizes, with defaults of the
// configuration class in Transformers 5.24.
//
// Layers with experts have the MLP beside them: it counts as a shared expert, and the scale of the
// router's input as one of the norms. Embeddings for each layer and layers that share keys and
// values (E2B, E4B) are refused.

namespace {

constexpr std::uint8_t kWindowedForm = 1, kFullForm = 2;  // forms

/// What per_layer_config of Transformers 5 says of all full layers alike, or nothing.
std::optional<JsonReader> full_layers(const JsonReader& config, const Model& m) {
  const auto by_layer = config.find_object("per_layer_config");
  if (!by_layer) return std::nullopt;
  const std::size_t digits = fmt::format("{}", m.layers - 1).size();
  std::optional<JsonReader> first;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string key = fmt::format("{:0{}}", layer, digits);
    const bool listed = by_layer->has(key);
    if (listed != (m.kind(layer).form == kFullForm))
      config.fail("per_layer_config", "sizes of the layers with full attention");
    if (!listed) continue;
    const JsonReader sizes = by_layer->require_object(key);
    if (first && sizes.raw() != first->raw())
      by_layer->fail(key, "the sizes of the other layers with full attention");
    first = sizes;
  }
  return first;
}

void set_forms(const JsonReader& config, Model& m) {
  LayerForm windowed = {m.heads, m.kv_heads, m.head_dim, true, false}, full = windowed;
  const bool one_product = config.optional<bool>("attention_k_eq_v", false);
  full.windowed = false;
  full.values_are_keys = one_product;
  const auto sizes = full_layers(config, m);
  const JsonReader& source = sizes ? *sizes : config;
  full.head_dim = sizes ? size_or(source, "head_dim", m.head_dim, model_limits::kHeadDim)
                        : size_or(source, "global_head_dim", 512, model_limits::kHeadDim);
  // Only with one product for both does the number of key heads count.
  if (sizes) {
    full.kv_heads = size_or(source, "num_key_value_heads", m.kv_heads, model_limits::kHeads);
  } else if (one_product) {
    full.kv_heads = size_or(source, "num_global_key_value_heads", m.kv_heads, model_limits::kHeads);
  } else {
    static_cast<void>(config.has("num_global_key_value_heads"));
  }
  if (full.heads % full.kv_heads != 0) {
    source.fail(sizes ? "num_key_value_heads" : "num_global_key_value_heads",
                fmt::format("a divisor of the {} num_attention_heads", full.heads));
  }
  m.forms = {windowed, full};
}

void set_gemma_experts(const JsonReader& config, Model& m) {
  set_routing(config, m, "num_experts", "top_k_experts");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = m.ffn;
  m.experts.router_bias = true;  // per_expert_scale
  m.norms_per_layer = 8;         // three more, and the router's scale
}

}  // namespace

Model read_gemma4_text(const JsonReader& config) {
  Model m = read_planned(config, "gemma4_text",
                         {.max_positions = 131072,
                          .activation = "gelu_pytorch_tanh",
                          .activation_key = "hidden_activation",
                          .tied = true,
                          .head_dim = 256,
                          .angles_by_layer = true,
                          .mixes = true},
                         "has other heads in full and windowed layers");
  if (!config.has("hidden_size_per_layer_input") ||
      config.require<std::int64_t>("hidden_size_per_layer_input") != 0) {
    config.fail("hidden_size_per_layer_input",
                "0, because embeddings for each layer are not modelled");
  }
  static_cast<void>(config.has("vocab_size_per_layer_input"));
  static_cast<void>(config.has("use_double_wide_mlp"));  // of layers that share keys and values
  refuse(config, "num_kv_shared_layers", 0);
  // Text attends causally all the same.
  if (config.has("use_bidirectional_attention"))
    config.require_choice("use_bidirectional_attention", {"vision"});
  set_attention_bias(config, m, false);
  m.qk_norm = m.value_norm = true;
  m.norms_per_layer = 4;
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  m.logit_softcap = config.optional<double>("final_logit_softcapping", 0.0, at_least(0.0));
  m.sliding_window = size_or(config, "sliding_window", 512, model_limits::kPositions);
  const bool experts = config.optional<bool>("enable_moe_block", false);
  if (experts) {
    set_gemma_experts(config, m);
  } else {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"})
      static_cast<void>(config.has(key));
  }
  const Channels channels = experts ? Channels::kExperts : Channels::kMlp;
  // Every sixth layer sees all, and the last one.
  set_kinds(config, m, "layer_types",
            {{"sliding_attention", Mixer::kAttention, channels, kWindowedForm},
             {"full_attention", Mixer::kAttention, channels, kFullForm}},
            [&](std::int64_t layer) {
              const bool full = (layer + 1) % 6 == 0;
              return LayerKind{Mixer::kAttention, channels, full ? kFullForm : kWindowedForm};
            });
  m.kinds.back().form = kFullForm;
  set_forms(config, m);
  for (const LayerKind kind : m.kinds) m.windowed_layers += kind.form == kWindowedForm ? 1 : 0;
  return m;
}

}  // namespace shardwright::hf
