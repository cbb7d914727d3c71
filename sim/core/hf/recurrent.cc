// SPDX-License-Identifier: Apache-2.0
// Configs of models in which some or all layers have a recurrence in place of attention: Mamba-2
// (mamba2, bamba, granitemoehybrid, nemotron_h) or gated delta nets (qwen3_next).
//
// Defaults are those of the configuration classes in Transformers 4.5x
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them. That some of
// them have no RoPE is not counted: it is read as if they turned.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"

namespace shardwright::hf {
namespace {

constexpr std::string_view kHasMamba2 = "has Mamba-2 layers", kHasDelta = "has gated delta nets";

/// The keys of Mamba-2 layers as a family calls them, and its class's defaults.
struct Mamba2Keys {
  std::string_view heads, head_dim, groups, state, taps, chunk, convolution_bias, bias;
  std::int64_t usual_heads, usual_groups, usual_state, usual_chunk;
};

Recurrence read_mamba2_layer(const JsonReader& config, const Model& m, const Mamba2Keys& keys) {
  Recurrence r;
  r.kind = RecurrenceKind::kMamba2;
  r.value_heads = size_or(config, keys.heads, keys.usual_heads, model_limits::kHeads);
  const std::int64_t expand = size_or(
      config, config.has("mamba_expand") ? "mamba_expand" : "expand", 2, model_limits::kHeadDim);
  // "auto": what makes the layer so many times as wide as the model.
  const bool given = present(config, keys.head_dim) &&
                     config.raw()[std::string(keys.head_dim)].is_number_integer();
  if (given) {
    r.value_dim = size(config, keys.head_dim, model_limits::kHeadDim);
  } else {
    static_cast<void>(config.has(keys.head_dim));
    if (expand * m.hidden % r.value_heads != 0)
      config.fail(keys.heads, fmt::format("a divisor of {}", expand * m.hidden));
    r.value_dim = expand * m.hidden / r.value_heads;
  }
  r.key_heads = size_or(config, keys.groups, keys.usual_groups, model_limits::kHeads);
  if (r.value_heads % r.key_heads != 0)
    config.fail(keys.groups, fmt::format("a divisor of the {} heads", r.value_heads));
  r.key_dim = size_or(config, keys.state, keys.usual_state, model_limits::kHeadDim);
  r.taps = size_or(config, keys.taps, 4, 64);
  r.chunk = size_or(config, keys.chunk, keys.usual_chunk, 1 << 14);
  r.convolution_bias = config.optional<bool>(keys.convolution_bias, true);
  r.bias = config.optional<bool>(keys.bias, false);
  return r;
}

constexpr Mamba2Keys kHybridKeys = {"mamba_n_heads",
                                    "mamba_d_head",
                                    "mamba_n_groups",
                                    "mamba_d_state",
                                    "mamba_d_conv",
                                    "mamba_chunk_size",
                                    "mamba_conv_bias",
                                    "mamba_proj_bias",
                                    128,
                                    1,
                                    256,
                                    256};

/// layer_types, or `otherwise` for each layer.
template <typename Otherwise>
void set_mixers(const JsonReader& config, Model& m, std::string_view recurrent,
                std::string_view attention, Channels channels, const Otherwise& otherwise) {
  const auto types = config.find_array("layer_types");
  if (types && static_cast<std::int64_t>(types->size()) != m.layers)
    config.fail("layer_types", fmt::format("a type for each of the {} layers", m.layers));
  for (std::int64_t i = 0; i < m.layers; ++i) {
    bool attends = otherwise(i);
    if (types) {
      const JsonReader& type = (*types)[static_cast<std::size_t>(i)];
      const std::string name = type.value<std::string>();
      if (name != recurrent && name != attention)
        type.fail(fmt::format("{} or {}", recurrent, attention));
      attends = name == attention;
    }
    m.kinds.push_back({attends ? Mixer::kAttention : Mixer::kRecurrence, channels});
  }
}

}  // namespace

Model read_mamba2(const JsonReader& config) {
  Model m;
  m.family = "mamba2";
  m.planning_only = kHasMamba2;
  m.hidden = size(config, "hidden_size", model_limits::kHidden);
  m.layers = size(config, "num_hidden_layers", model_limits::kLayers);
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = 1 << 20;  // nothing bounds them
  m.norm_eps = norm_eps(config, "layer_norm_epsilon", 1e-5);
  m.tied_head = config.optional<bool>("tie_word_embeddings", false);
  m.recurrence =
      read_mamba2_layer(config, m,
                        {"num_heads", "head_dim", "n_groups", "state_size", "conv_kernel",
                         "chunk_size", "use_conv_bias", "use_bias", 128, 8, 128, 256});
  // Of heads and an MLP that no layer has.
  m.heads = m.kv_heads = m.recurrence.value_heads;
  m.head_dim = 2 * m.recurrence.value_dim;
  m.ffn = m.recurrence.value_width();
  m.kinds.assign(static_cast<std::size_t>(m.layers), {Mixer::kRecurrence, Channels::kNone});
  return m;
}

Model read_bamba(const JsonReader& config) {
  Model m = read_planned(
      config, "bamba", {.max_positions = 262144, .eps = 1e-5, .rotary_fraction = 0.5}, kHasMamba2);
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.recurrence = read_mamba2_layer(config, m, kHybridKeys);
  const auto attending = config.find_array("attn_layer_indices");
  set_mixers(config, m, "mamba", "attention", Channels::kMlp, [&](std::int64_t layer) {
    return attending && std::any_of(attending->begin(), attending->end(), [&](const auto& index) {
             return index.template value<std::int64_t>() == layer;
           });
  });
  return m;
}

Model read_granite4(const JsonReader& config) {
  Model m =
      read_planned(config, "granitemoehybrid", {}, "multiplies embeddings, scores and residuals");
  set_attention_bias(config, m, false);
  const std::int64_t expert_ffn = m.ffn;
  m.ffn = size(config, "shared_intermediate_size", model_limits::kFfn);
  m.fused_gate_up = true;
  const bool experts = config.optional<std::int64_t>("num_local_experts", 8) > 0;
  const bool mixed = present(config, "layer_types") &&
                     config.raw()["layer_types"].dump().find("mamba") != std::string::npos;
  if (experts) {
    set_routing(config, m, "num_local_experts", "num_experts_per_tok");
    m.experts.ffn = expert_ffn;
    m.experts.shared_ffn = m.ffn;
    m.planning_only = "has experts";
  } else {
    static_cast<void>(config.has("num_experts_per_tok"));
  }
  // Files of models without these layers have their sizes all the same.
  for (const char* key :
       {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
        "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_expand"}) {
    static_cast<void>(config.has(key));
  }
  if (!mixed && present(config, "layer_types")) return m;
  m.planning_only = kHasMamba2;
  m.recurrence = read_mamba2_layer(config, m, kHybridKeys);
  set_mixers(config, m, "mamba", "attention", experts ? Channels::kExperts : Channels::kMlp,
             [](std::int64_t) { return false; });
  return m;
}

/// Each of its layers is half of another's: Mamba-2, attention or an MLP.
Model read_nemotron_h(const JsonReader& config) {
  const bool old = config.has("attention_head_dim");
  Model m = read_planned(
      config, "nemotron_h",
      {.max_positions = 4096, .eps = 1e-5, .activation_key = "", .head_dim = 128}, kHasMamba2);
  if (old) m.head_dim = size(config, "attention_head_dim", model_limits::kHeadDim);
  config.require_choice("mlp_hidden_act", {"relu2"});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.gated_mlp = false;
  m.activation = Activation::kRelu;
  m.recurrence = read_mamba2_layer(
      config, m,
      {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
       "chunk_size", "use_conv_bias", "mamba_proj_bias", 128, 8, 128, 256});
  const auto pattern = config.require<std::string>("hybrid_override_pattern");
  if (static_cast<std::int64_t>(pattern.size()) != m.layers) {
    config.fail("hybrid_override_pattern", fmt::format("{} letters, one a layer", m.layers));
  }
  for (const char letter : pattern) {
    if (letter == 'M') {
      m.kinds.push_back({Mixer::kRecurrence, Channels::kNone});
    } else if (letter == '*') {
      m.kinds.push_back({Mixer::kAttention, Channels::kNone});
    } else if (letter == '-') {
      m.kinds.push_back({Mixer::kNone, Channels::kMlp});
    } else {
      config.fail("hybrid_override_pattern", "M, * and -, because others are not modelled");
    }
  }
  return m;
}

Model read_qwen3_next(const JsonReader& config) {
  Model m = read_with_experts(config, "qwen3_next",
                              {.max_positions = 32768, .head_dim = 256, .rotary_fraction = 0.25});
  m.planning_only = kHasDelta;
  set_attention_bias(config, m, false);
  m.qk_norm = m.attention_gate = true;
  set_routing(config, m, "num_experts", "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  m.experts.shared_gate = true;
  if (size_or(config, "decoder_sparse_step", 1, m.layers) != 1)
    config.fail("decoder_sparse_step", "1, because layers without experts are not modelled");
  const auto dense = config.find_array("mlp_only_layers");
  if (dense && !dense->empty())
    config.fail("mlp_only_layers", "none, because layers without experts are not modelled");
  Recurrence& r = m.recurrence;
  r.kind = RecurrenceKind::kGatedDelta;
  r.key_heads = size_or(config, "linear_num_key_heads", 16, model_limits::kHeads);
  r.value_heads = size_or(config, "linear_num_value_heads", 32, model_limits::kHeads);
  r.key_dim = size_or(config, "linear_key_head_dim", 128, model_limits::kHeadDim);
  r.value_dim = size_or(config, "linear_value_head_dim", 128, model_limits::kHeadDim);
  r.taps = size_or(config, "linear_conv_kernel_dim", 4, 64);
  r.chunk = 64;
  const std::int64_t every = size_or(config, "full_attention_interval", 4, model_limits::kLayers);
  set_mixers(config, m, "linear_attention", "full_attention", Channels::kExperts,
             [&](std::int64_t layer) { return (layer + 1) % every == 0; });
  return m;
}

}  // namespace shardwright::hf
