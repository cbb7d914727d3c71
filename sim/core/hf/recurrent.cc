// SPDX-License-Identifier: Apache-2.0
// Configs of models in which some or all layers have Mamba or Mamba-2 in place of attention, or
// beside it.
//
// Defaults are those of the configuration classes in Transformers 5.24
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them. That some of
// them have no RoPE is not counted: it is read as if they turned.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"
#include "sim/core/hf/mixers.h"

namespace shardwright::hf {
namespace {

constexpr std::string_view kHasMamba2 = "has Mamba-2 layers", kHasMamba = "has Mamba layers";
constexpr LayerKind kAttends = {Mixer::kAttention, Channels::kMlp},
                    kRecurs = {Mixer::kRecurrence, Channels::kMlp};

/// Of files before Transformers 5, and since.
std::vector<LayerName> mamba_names() {
  return {{"mamba", Mixer::kRecurrence},
          {"attention"},
          {"linear_attention", Mixer::kRecurrence},
          {"full_attention"}};
}

/// What a file of a model without attention and MLP says.
Model read_without_attention(const JsonReader& config, const std::string& family, bool tied) {
  Model m;
  m.family = family;
  m.hidden = size(config, "hidden_size", model_limits::kHidden);
  m.layers = size(config, "num_hidden_layers", model_limits::kLayers);
  m.vocab = size(config, "vocab_size", model_limits::kVocab);
  m.max_positions = 1 << 20;  // nothing bounds them
  m.norm_eps = norm_eps(config, "layer_norm_epsilon", 1e-5);
  m.tied_head = config.optional<bool>("tie_word_embeddings", tied);
  m.kinds.assign(static_cast<std::size_t>(m.layers), {Mixer::kRecurrence, Channels::kNone});
  return m;
}

/// Heads and an MLP that no layer has.
void set_absent_sizes(Model& m, std::int64_t heads, std::int64_t head_dim) {
  m.heads = m.kv_heads = heads;
  m.head_dim = 2 * head_dim;
  m.ffn = m.recurrence.value_width();
}

/// The keys of Mamba layers as a family calls them.
struct MambaKeys {
  std::string_view state, taps, expand, rank, convolution_bias, bias;
};

Recurrence read_mamba_layer(const JsonReader& config, const Model& m, const MambaKeys& keys) {
  Recurrence r;
  r.kind = RecurrenceKind::kMamba1;
  r.value_heads = r.key_heads = 1;
  r.value_dim = m.hidden * size_or(config, keys.expand, 2, 64);
  r.key_dim = size_or(config, keys.state, 16, model_limits::kHeadDim);
  r.taps = size_or(config, keys.taps, 4, 64);
  const bool given =
      present(config, keys.rank) && config.raw()[std::string(keys.rank)].is_number_integer();
  static_cast<void>(config.has(keys.rank));  // or "auto"
  r.rank = given ? size(config, keys.rank, model_limits::kHidden) : (m.hidden + 15) / 16;
  r.norm = false;
  r.convolution_bias = config.optional<bool>(keys.convolution_bias, true);
  r.bias = config.optional<bool>(keys.bias, false);
  return r;
}

Model read_mamba1(const JsonReader& config, const std::string& family) {
  Model m = read_without_attention(config, family, true);
  m.planning_only = kHasMamba;
  m.recurrence = read_mamba_layer(
      config, m,
      {"state_size", "conv_kernel", "expand", "time_step_rank", "use_conv_bias", "use_bias"});
  set_absent_sizes(m, 1, m.recurrence.key_dim);
  static_cast<void>(config.has("intermediate_size"));  // of expand
  return m;
}

}  // namespace

Model read_mamba(const JsonReader& config) {
  return read_mamba1(config, "mamba");
}

/// Its norms of steps, B and C have no weights.
Model read_falcon_mamba(const JsonReader& config) {
  return read_mamba1(config, "falcon_mamba");
}

Model read_mamba2(const JsonReader& config) {
  Model m = read_without_attention(config, "mamba2", false);
  m.planning_only = kHasMamba2;
  m.recurrence =
      read_mamba2_layer(config, m,
                        {"num_heads", "head_dim", "n_groups", "state_size", "conv_kernel",
                         "chunk_size", "use_conv_bias", "use_bias", 128, 8, 128, 256});
  set_absent_sizes(m, m.recurrence.value_heads, m.recurrence.value_dim);
  static_cast<void>(config.has("time_step_rank"));  // of Mamba
  return m;
}

Model read_bamba(const JsonReader& config) {
  Model m = read_planned(
      config, "bamba",
      {.max_positions = 262144, .eps = 1e-5, .rotary_fraction = 0.5, .mixes = true}, kHasMamba2);
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.recurrence = read_mamba2_layer(config, m, kHybridKeys);
  const auto attending = config.find_array("attn_layer_indices");
  set_kinds(config, m, "layer_types", mamba_names(), [&](std::int64_t layer) {
    const bool attends =
        attending && std::any_of(attending->begin(), attending->end(), [&](const auto& index) {
          return index.template value<std::int64_t>() == layer;
        });
    return attends ? kAttends : kRecurs;
  });
  return m;
}

/// Attention and Mamba-2 beside each other in every layer.
Model read_falcon_h1(const JsonReader& config) {
  Model m = read_planned(config, "falcon_h1", {.max_positions = 8192, .eps = 1e-5},
                         "has attention and Mamba-2 beside each other");
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  // null: expand times the model's.
  const std::int64_t width = present(config, "mamba_d_ssm") && !config.has("mamba_d_ssm")
                                 ? 0
                                 : size_or(config, "mamba_d_ssm", 1024, model_limits::kProjection);
  m.recurrence = read_mamba2_layer(config, m, kHybridKeys, width);
  if (width > 0 && m.recurrence.value_width() != width) {
    config.fail("mamba_d_ssm", fmt::format("{}, the {} heads of {}", m.recurrence.value_width(),
                                           m.recurrence.value_heads, m.recurrence.value_dim));
  }
  m.recurrence.norm = config.optional<bool>("mamba_rms_norm", false);
  refuse(config, "projectors_bias", 0);
  m.kinds.assign(static_cast<std::size_t>(m.layers), {Mixer::kParallel, Channels::kMlp});
  return m;
}

Model read_jamba(const JsonReader& config) {
  Model m = read_with_experts(config, "jamba", {.max_positions = 262144, .mixes = true});
  m.planning_only = kHasMamba;
  const std::string_view count = experts_key(config);
  const bool experts = config.optional<std::int64_t>(count, 16) > 1;  // one is an MLP
  if (experts) {
    set_routing(config, m, count, "num_experts_per_tok");
    m.experts.ffn = m.ffn;
  }
  m.recurrence = read_mamba_layer(config, m,
                                  {"mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank",
                                   "mamba_conv_bias", "mamba_proj_bias"});
  m.recurrence.inner_norms = true;
  const auto every = [&](std::string_view period_key, std::string_view offset_key,
                         std::int64_t period, std::int64_t offset) {
    period = size_or(config, period_key, period, model_limits::kLayers);
    offset =
        config.optional<std::int64_t>(offset_key, offset, between<std::int64_t>(0, period - 1));
    return [period, offset](std::int64_t layer) { return layer % period == offset; };
  };
  const auto attends = every("attn_layer_period", "attn_layer_offset", 8, 4);
  const auto routes = every("expert_layer_period", "expert_layer_offset", 2, 1);
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    m.kinds.push_back({attends(layer) ? Mixer::kAttention : Mixer::kRecurrence,
                       experts && routes(layer) ? Channels::kExperts : Channels::kMlp});
  }
  return m;
}

Model read_granite4(const JsonReader& config) {
  Model m = read_planned(config, "granitemoehybrid", {.mixes = true},
                         "multiplies embeddings, scores and residuals");
  set_attention_bias(config, m, false);
  const std::int64_t expert_ffn = m.ffn;
  m.ffn = size(config, "shared_intermediate_size", model_limits::kFfn);
  m.fused_gate_up = true;
  const bool experts = config.optional<std::int64_t>("num_local_experts", 8) > 0;
  if (experts) {
    set_routing(config, m, "num_local_experts", "num_experts_per_tok");
    m.experts.ffn = expert_ffn;
    m.experts.shared_ffn = m.ffn;
    m.planning_only = "has experts";
  } else {
    static_cast<void>(config.has("num_experts_per_tok"));
  }
  const Channels channels = experts ? Channels::kExperts : Channels::kMlp;
  set_kinds(config, m, "layer_types", mamba_names(), [&](std::int64_t) {
    return LayerKind{Mixer::kRecurrence, channels};
  });
  // Files of models without these layers have their sizes all the same.
  for (const char* key :
       {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
        "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_expand"}) {
    static_cast<void>(config.has(key));
  }
  if (std::none_of(m.kinds.begin(), m.kinds.end(), [](LayerKind k) { return k.recurs(); })) {
    m.kinds.clear();
    return m;
  }
  m.planning_only = kHasMamba2;
  m.recurrence = read_mamba2_layer(config, m, kHybridKeys);
  return m;
}

namespace {

constexpr std::string_view kPattern = "hybrid_override_pattern", kBlocks = "layers_block_type";

/// Each layer of nemotron_h is half of another's.
LayerKind half_of(const JsonReader& config, char letter) {
  switch (letter) {
    case 'M':
      return {Mixer::kRecurrence, Channels::kNone};
    case '*':
      return {Mixer::kAttention, Channels::kNone};
    case '-':
      return {Mixer::kNone, Channels::kMlp};
    case 'E':
      return {Mixer::kNone, Channels::kExperts};
    default:
      config.fail(kPattern, "M, *, - and E, because others are not modelled");
  }
}

void set_halves(const JsonReader& config, Model& m) {
  const auto half = [&](char letter) { return half_of(config, letter); };
  if (!config.has(kPattern)) {
    std::vector<LayerName> names;
    for (const auto& [name, letter] :
         std::vector<std::pair<std::string_view, char>>{{"mamba", 'M'},
                                                        {"linear_attention", 'M'},
                                                        {"attention", '*'},
                                                        {"full_attention", '*'},
                                                        {"mlp", '-'},
                                                        {"moe", 'E'}}) {
      names.push_back({name, half(letter).mixer, half(letter).channels});
    }
    set_kinds(config, m, kBlocks, names, [&](std::int64_t) { return half('M'); });
    return;
  }
  const auto pattern = config.require<std::string>(kPattern);
  if (static_cast<std::int64_t>(pattern.size()) != m.layers)
    config.fail(kPattern, fmt::format("{} letters, one a layer", m.layers));
  for (const char letter : pattern) m.kinds.push_back(half(letter));
}

void set_nemotron_experts(const JsonReader& config, Model& m) {
  set_routing(config, m, "n_routed_experts", "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  e.shared_ffn = size(config, "moe_shared_expert_intermediate_size", model_limits::kFfn);
  refuse(config, "n_shared_experts", 1);
  if (config.has("moe_latent_size"))
    e.latent = size(config, "moe_latent_size", model_limits::kHidden);
  e.groups = size_or(config, "n_group", 1, e.count);
  e.groups_per_token = size_or(config, "topk_group", e.groups, e.groups);
  m.mtp_layers = predicted_layers(config);
  if (m.mtp_layers == 0) return;
  // A module holds attention and experts.
  if (config.has("mtp_hybrid_override_pattern"))
    config.require_choice("mtp_hybrid_override_pattern", {"*E"});
}

}  // namespace

/// Each of its layers is half of another's: Mamba-2, attention, an MLP or experts.
Model read_nemotron_h(const JsonReader& config) {
  const bool old = config.has("attention_head_dim");
  const auto blocks = config.find_array(kBlocks);
  if (!blocks && !config.has(kPattern)) {
    config.fail(kPattern, fmt::format("the kinds of all layers, there or in {}", kBlocks));
  }
  Model m =
      read_planned(config, "nemotron_h",
                   {.max_positions = 4096,
                    .eps = 1e-5,
                    .activation_key = "",
                    .head_dim = 128,
                    .eps_key = config.has("rms_norm_eps") ? "rms_norm_eps" : "layer_norm_epsilon",
                    .layers = blocks ? static_cast<std::int64_t>(blocks->size()) : 0,
                    .mixes = true},
                   kHasMamba2);
  if (old) m.head_dim = size(config, "attention_head_dim", model_limits::kHeadDim);
  config.require_choice("mlp_hidden_act", {"relu2"});
  set_attention_bias(config, m, false);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
  m.gated_mlp = false;
  m.activation = Activation::kRelu;
  refuse(config, "sliding_window", 0);
  m.recurrence = read_mamba2_layer(
      config, m,
      {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
       "chunk_size", "use_conv_bias", "mamba_proj_bias", 128, 8, 128, 256});
  set_halves(config, m);
  const bool routes = std::any_of(m.kinds.begin(), m.kinds.end(), [](LayerKind kind) {
    return kind.channels == Channels::kExperts;
  });
  if (routes) set_nemotron_experts(config, m);
  return m;
}

}  // namespace shardwright::hf
