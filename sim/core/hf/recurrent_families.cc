// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/recurrent_families.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/hf/dense_families.h"
#include "sim/core/hf/expert_families.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"

namespace shardwright::hf {

void set_kinds(const JsonReader& config, Model& m, std::string_view key,
               const std::vector<LayerName>& names, const KindOf& otherwise) {
  const auto types = config.find_array(key);
  if (types && static_cast<std::int64_t>(types->size()) != m.layers)
    config.fail(key, fmt::format("a type for each of the {} layers", m.layers));
  m.kinds.clear();
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    m.kinds.push_back(otherwise(layer));
    if (!types) continue;
    const JsonReader& type = (*types)[static_cast<std::size_t>(layer)];
    const std::string given = type.value<std::string>();
    const auto named = std::find_if(names.begin(), names.end(),
                                    [&](const LayerName& each) { return each.name == given; });
    if (named == names.end()) {
      std::vector<std::string_view> known;
      for (const LayerName& each : names) known.push_back(each.name);
      type.fail(fmt::format("{}", fmt::join(known, " or ")));
    }
    LayerKind& kind = m.kinds.back();
    kind = {named->mixer, named->channels.value_or(kind.channels), named->form};
  }
}

const Mamba2Keys kHybridKeys = {"mamba_n_heads",
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

Recurrence read_mamba2_layer(const JsonReader& config, const Model& m, const Mamba2Keys& keys,
                             std::int64_t width) {
  Recurrence r;
  r.kind = RecurrenceKind::kMamba2;
  r.value_heads = size_or(config, keys.heads, keys.usual_heads, model_limits::kHeads);
  const std::int64_t expand = size_or(
      config, config.has("mamba_expand") ? "mamba_expand" : "expand", 2, model_limits::kHeadDim);
  if (width == 0) width = expand * m.hidden;
  // "auto": what makes the layer as wide as that.
  const bool given = present(config, keys.head_dim) &&
                     config.raw()[std::string(keys.head_dim)].is_number_integer();
  if (given) {
    r.value_dim = size(config, keys.head_dim, model_limits::kHeadDim);
  } else {
    static_cast<void>(config.has(keys.head_dim));
    if (width % r.value_heads != 0) config.fail(keys.heads, fmt::format("a divisor of {}", width));
    r.value_dim = width / r.value_heads;
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

Recurrence read_gated_delta(const JsonReader& config, const Recurrence& usual) {
  Recurrence r;
  r.kind = RecurrenceKind::kGatedDelta;
  r.key_heads = size_or(config, "linear_num_key_heads", usual.key_heads, model_limits::kHeads);
  r.value_heads =
      size_or(config, "linear_num_value_heads", usual.value_heads, model_limits::kHeads);
  if (r.value_heads % r.key_heads != 0) {
    config.fail("linear_num_key_heads",
                fmt::format("a divisor of the {} value heads", r.value_heads));
  }
  r.key_dim = size_or(config, "linear_key_head_dim", usual.key_dim, model_limits::kHeadDim);
  r.value_dim =
      size_or(config, "linear_value_head_dim",
              usual.value_dim > 0 ? usual.value_dim : 2 * r.key_dim, model_limits::kHeadDim);
  r.taps = size_or(config, "linear_conv_kernel_dim", 4, 64);
  r.chunk = 64;
  return r;
}

// Configs of models in which some layers have delta rules, lightning attention or short
// convolutions in place of attention.
//
// Defaults are those of the configuration classes in Transformers 5.24; sizes of experts must be in
// the file. A bias that balances experts without being trained is a buffer and no parameter.

namespace {

constexpr std::string_view kHasDelta = "has gated delta nets",
                           kHasKimiDelta = "has Kimi delta attention",
                           kHasLightning = "has lightning attention",
                           kHasConvolutions = "has short convolutions";
constexpr LayerKind kAttending = {Mixer::kAttention, Channels::kMlp},
                    kRecurring = {Mixer::kRecurrence, Channels::kMlp};

LayerKind with_channels(bool attends, Channels channels) {
  return {attends ? Mixer::kAttention : Mixer::kRecurrence, channels};
}

std::vector<LayerName> linear_names() {
  return {{"linear_attention", Mixer::kRecurrence}, {"full_attention"}};
}

/// Every n-th layer attends.
void set_every(const JsonReader& config, Model& m, std::int64_t every, Channels channels) {
  set_kinds(config, m, "layer_types", linear_names(),
            [&](std::int64_t layer) { return with_channels((layer + 1) % every == 0, channels); });
}

/// full_attention_interval, or layer_types.
void set_qwen_kinds(const JsonReader& config, Model& m, Channels channels) {
  m.planning_only = kHasDelta;
  set_attention_bias(config, m, false);
  m.qk_norm = m.attention_gate = true;
  m.recurrence = read_gated_delta(
      config, {.value_heads = 32, .value_dim = 128, .key_heads = 16, .key_dim = 128});
  set_every(config, m, size_or(config, "full_attention_interval", 4, model_limits::kLayers),
            channels);
}

void set_qwen_experts(const JsonReader& config, Model& m) {
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  m.experts.shared_gate = true;
}

constexpr LlamaLike kQwenLike = {
    .max_positions = 32768, .head_dim = 256, .rotary_fraction = 0.25, .mixes = true};

Model read_qwen3_5_like(const JsonReader& config, const std::string& family,
                        std::string_view ffn_key) {
  LlamaLike like = kQwenLike;
  like.angle_sections = true;
  like.ffn_key = ffn_key;
  Model m = read_llama_like(config, family, like);
  m.mtp_layers =
      config.optional<std::int64_t>("mtp_num_hidden_layers", 0, between<std::int64_t>(0, 16));
  refuse(config, "attn_output_gate", 1);
  return m;
}

}  // namespace

Model read_qwen3_next(const JsonReader& config) {
  Model m = read_with_experts(config, "qwen3_next", kQwenLike);
  set_qwen_experts(config, m);
  if (size_or(config, "decoder_sparse_step", 1, m.layers) != 1)
    config.fail("decoder_sparse_step", "1, because layers without experts are not modelled");
  const auto dense = config.find_array("mlp_only_layers");
  if (dense && !dense->empty())
    config.fail("mlp_only_layers", "none, because layers without experts are not modelled");
  set_qwen_kinds(config, m, Channels::kExperts);
  return m;
}

Model read_qwen3_5_text(const JsonReader& config) {
  Model m = read_qwen3_5_like(config, "qwen3_5_text", "intermediate_size");
  set_qwen_kinds(config, m, Channels::kMlp);
  return m;
}

Model read_qwen3_5_moe_text(const JsonReader& config) {
  Model m = read_qwen3_5_like(config, "qwen3_5_moe_text", "shared_expert_intermediate_size");
  set_qwen_experts(config, m);
  set_qwen_kinds(config, m, Channels::kExperts);
  return m;
}

/// Layers that attend have their norms behind attention and MLP, the others before.
Model read_olmo_hybrid(const JsonReader& config) {
  // Its published files have no RoPE: rope_parameters without theta.
  Model m = read_planned(config, "olmo_hybrid", {.max_positions = 65536, .mixes = true}, kHasDelta);
  set_attention_bias(config, m, false);
  m.qk_norm = m.qk_norm_whole = true;
  const std::int64_t key_heads =
      size_or(config, "linear_num_key_heads", m.heads, model_limits::kHeads);
  m.recurrence = read_gated_delta(
      config,
      {.value_heads = m.heads, .key_heads = m.heads, .key_dim = 3 * m.hidden / (4 * key_heads)});
  set_every(config, m, 4, Channels::kMlp);
  return m;
}

namespace {

/// The layers of 1 to n that linear_attn_config lists, as Moonshot's files do.
void set_listed_kinds(const JsonReader& linear, Model& m, std::int64_t dense) {
  std::vector<bool> listed(static_cast<std::size_t>(m.layers));
  const auto read = [&](std::string_view key, bool attends) {
    for (const JsonReader& each : linear.require_array(key)) {
      const auto layer =
          static_cast<std::size_t>(each.value<std::int64_t>(between<std::int64_t>(1, m.layers))) -
          1;
      if (listed[layer]) each.fail("a layer that is listed once");
      listed[layer] = true;
      m.kinds[layer].mixer = attends ? Mixer::kAttention : Mixer::kRecurrence;
    }
  };
  m.kinds.clear();
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    m.kinds.push_back(with_channels(false, layer < dense ? Channels::kMlp : Channels::kExperts));
  read("full_attn_layers", true);
  read("kda_layers", false);
  const auto missing = std::find(listed.begin(), listed.end(), false);
  if (missing != listed.end()) {
    linear.fail("kda_layers", fmt::format("layer {}, which no list has",
                                          std::distance(listed.begin(), missing) + 1));
  }
}

void set_kimi_experts(const JsonReader& config, Model& m) {
  set_routing(config, m, config.has("n_routed_experts") ? "n_routed_experts" : experts_key(config),
              config.has("num_experts_per_tok") ? "num_experts_per_tok" : "num_experts_per_token");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  const bool deepseek = config.has("n_shared_experts");
  e.shared_ffn =
      e.ffn * config.optional<std::int64_t>(deepseek ? "n_shared_experts" : "num_shared_experts", 1,
                                            between<std::int64_t>(0, 64));
  e.groups = size_or(config, config.has("n_group") ? "n_group" : "num_expert_group", 1, e.count);
  e.groups_per_token = size_or(config, "topk_group", e.groups, e.groups);
  refuse(config, "moe_layer_freq", 1);
}

Recurrence kimi_delta(std::int64_t heads, std::int64_t head_dim, std::int64_t taps) {
  Recurrence r;
  r.kind = RecurrenceKind::kKimiDelta;
  r.value_heads = r.key_heads = heads;
  r.value_dim = r.key_dim = head_dim;
  r.taps = taps;
  r.chunk = 64;
  return r;
}

}  // namespace

Model read_kimi_linear(const JsonReader& config) {
  const std::int64_t positions =
      size_or(config, "model_max_length", 1048576, model_limits::kPositions);
  Model m = read_with_latent(config, "kimi_linear",
                             {.max_positions = positions, .eps = 1e-5, .mixes = true});
  m.planning_only = kHasKimiDelta;
  refuse(config, "attn_res_block_size", 0);
  refuse(config, "mla_use_output_gate", 0);
  set_kimi_experts(config, m);
  if (config.has("routed_expert_hidden_size"))
    m.experts.latent = size(config, "routed_expert_hidden_size", model_limits::kHidden);
  const std::int64_t dense = leading_dense_layers(config, "first_k_dense_replace", 1);
  const auto linear = config.find_object("linear_attn_config");
  const JsonReader& sizes = linear ? *linear : config;
  const auto head = [&](std::string_view inside, std::string_view outside, std::int64_t usual,
                        std::int64_t most) {
    return size_or(sizes, linear ? inside : outside, usual, most);
  };
  m.recurrence = kimi_delta(head("num_heads", "linear_num_heads", 32, model_limits::kHeads),
                            head("head_dim", "linear_head_dim", 128, model_limits::kHeadDim),
                            head("short_conv_kernel_size", "linear_conv_kernel_dim", 4, 64));
  const bool full_rank = linear && linear->optional<bool>("use_full_rank_gate", false);
  if (!full_rank) m.recurrence.rank = m.recurrence.key_dim;
  if (linear && linear->has("full_attn_layers")) {
    set_listed_kinds(*linear, m, dense);
  } else {
    set_kinds(config, m, "layer_types", linear_names(), [&](std::int64_t layer) {
      return with_channels(layer > 0 && layer % 4 == 0,
                           layer < dense ? Channels::kMlp : Channels::kExperts);
    });
  }
  return m;
}

/// Ling 3. Its older files have other linear attention under the same name.
Model read_bailing_hybrid(const JsonReader& config) {
  if (!config.has("short_conv_kernel_size") && !config.has("linear_conv_kernel_dim")) {
    config.fail("short_conv_kernel_size",
                "the taps of Kimi delta attention's convolution, because other linear attention "
                "of this family is not modelled");
  }
  const std::int64_t positions =
      size_or(config, "model_max_length", 262144, model_limits::kPositions);
  Model m = read_with_latent(config, "bailing_hybrid",
                             {.max_positions = positions, .eps = 1e-6, .mixes = true});
  m.planning_only = kHasKimiDelta;
  m.head_gate = true;
  set_kimi_experts(config, m);
  m.mtp_layers = config.optional<std::int64_t>(
      config.has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers", 0,
      between<std::int64_t>(0, 16));
  // Transformers 5 calls head_dim what RoPE turns.
  const bool saved = config.has("linear_head_dim");
  m.recurrence = kimi_delta(
      size_or(config, "linear_num_heads", m.heads, model_limits::kHeads),
      size_or(config, saved ? "linear_head_dim" : "head_dim", 128, model_limits::kHeadDim),
      size_or(config,
              config.has("linear_conv_kernel_dim") ? "linear_conv_kernel_dim"
                                                   : "short_conv_kernel_size",
              4, 64));
  const std::int64_t dense = leading_dense_layers(config, "first_k_dense_replace", 2);
  const std::int64_t group = size_or(config, "layer_group_size", 6, model_limits::kLayers);
  set_kinds(config, m, "layer_types", linear_names(), [&](std::int64_t layer) {
    return with_channels((layer + 1) % group == 0,
                         layer < dense ? Channels::kMlp : Channels::kExperts);
  });
  return m;
}

namespace {

Recurrence lightning(const Model& m, std::int64_t chunk) {
  Recurrence r;
  r.kind = RecurrenceKind::kLightning;
  r.value_heads = r.key_heads = m.heads;
  r.value_dim = r.key_dim = m.head_dim;
  r.taps = 0;
  r.chunk = chunk;
  return r;
}

Model read_minimax_like(const JsonReader& config, const std::string& family) {
  Model m =
      read_with_experts(config, family, {.max_positions = 131072, .eps = 1e-5, .mixes = true});
  m.planning_only = kHasLightning;
  refuse(config, "sliding_window", 0);
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  refuse(config, "shared_intermediate_size", 0);
  m.recurrence = lightning(m, size_or(config, "block_size", 256, 1 << 14));
  return m;
}

}  // namespace

Model read_minimax(const JsonReader& config) {
  Model m = read_minimax_like(config, "minimax");
  set_kinds(config, m, "layer_types", linear_names(),
            [](std::int64_t layer) { return with_channels(layer % 2 == 0, Channels::kExperts); });
  return m;
}

/// attn_type_list: 1 for layers that attend.
Model read_minimax_text_01(const JsonReader& config) {
  Model m = read_minimax_like(config, "minimax_text_01");
  const std::vector<JsonReader> types = config.require_array("attn_type_list");
  if (static_cast<std::int64_t>(types.size()) != m.layers)
    config.fail("attn_type_list", fmt::format("a type for each of the {} layers", m.layers));
  for (const JsonReader& type : types) {
    const bool attends = type.value<std::int64_t>(between<std::int64_t>(0, 1)) == 1;
    m.kinds.push_back(with_channels(attends, Channels::kExperts));
  }
  return m;
}

/// Ling and Ring 2.0 linear: the last layer of each group attends.
Model read_bailing_moe_linear(const JsonReader& config) {
  Model m = read_with_experts(config, "bailing_moe_linear",
                              {.max_positions = 131072, .eps = 1e-6, .mixes = true});
  m.planning_only = kHasLightning;
  refuse(config, "use_bias", 0);
  refuse(config, "use_qkv_bias", 0);
  m.qk_norm = config.optional<bool>("use_qk_norm", true);
  set_kimi_experts(config, m);
  m.mtp_layers = predicted_layers(config);
  m.recurrence = lightning(m, 256);
  m.recurrence.inner_norms = m.qk_norm;
  const std::int64_t dense = leading_dense_layers(config, "first_k_dense_replace", 1);
  const std::int64_t group = size_or(config, "layer_group_size", 5, model_limits::kLayers);
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    // Layers that are left over after the last whole group attend, too.
    const bool attends = (layer + 1) % group == 0 || layer >= m.layers / group * group;
    m.kinds.push_back(with_channels(attends, layer < dense ? Channels::kMlp : Channels::kExperts));
  }
  return m;
}

namespace {

/// What LFM2 and LFM2-MoE share. Files before Transformers 5 call some keys after blocks.
Model read_lfm2_like(const JsonReader& config, const std::string& family) {
  const bool blocks = config.has("block_ff_dim");
  Model m = read_llama_like(config, family,
                            {.max_positions = 128000,
                             .eps = 1e-5,
                             .activation_key = "",
                             .tied = true,
                             .ffn_key = blocks ? "block_ff_dim" : "intermediate_size",
                             .eps_key = "norm_eps",
                             .mixes = true});
  m.planning_only = kHasConvolutions;
  // Sizes said twice, and how blocks begin.
  for (const char* key :
       {"block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
        "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
        "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"}) {
    static_cast<void>(config.has(key));
  }
  m.tied_head = config.optional<bool>("tie_embedding", m.tied_head);
  m.qk_norm = true;
  Recurrence& r = m.recurrence;
  r.kind = RecurrenceKind::kShortConvolution;
  r.value_heads = r.key_heads = r.key_dim = 1;
  r.value_dim = m.hidden;
  r.taps = size_or(config, "conv_L_cache", 3, 64);
  r.norm = false;
  r.bias = r.convolution_bias = config.optional<bool>("conv_bias", false);
  return m;
}

std::vector<LayerName> convolution_names() {
  return {{"conv", Mixer::kRecurrence}, {"full_attention"}};
}

}  // namespace

Model read_lfm2(const JsonReader& config) {
  Model m = read_lfm2_like(config, "lfm2");
  if (config.optional<bool>("block_auto_adjust_ff_dim", true)) {
    const double factor = config.optional<double>("block_ffn_dim_multiplier", 1.0, above(0.0));
    const std::int64_t unit = size_or(config, "block_multiple_of", 256, model_limits::kFfn);
    const auto ffn = static_cast<std::int64_t>(
        std::floor(factor * std::floor(2 * static_cast<double>(m.ffn) / 3)));
    m.ffn = (ffn + unit - 1) / unit * unit;
  }
  const auto attending = config.find_array("full_attn_idxs");
  set_kinds(config, m, "layer_types", convolution_names(), [&](std::int64_t layer) {
    const bool attends =
        !attending || std::any_of(attending->begin(), attending->end(), [&](const auto& index) {
          return index.template value<std::int64_t>() == layer;
        });
    return attends ? kAttending : kRecurring;
  });
  return m;
}

Model read_lfm2_moe(const JsonReader& config) {
  Model m = read_lfm2_like(config, "lfm2_moe");
  if (!config.has("layer_types"))
    config.fail("layer_types", "conv or full_attention for each layer");
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  const auto dense =
      config.optional<std::int64_t>("num_dense_layers", 2, between<std::int64_t>(0, m.layers - 1));
  set_kinds(config, m, "layer_types", convolution_names(), [&](std::int64_t layer) {
    return with_channels(false, layer < dense ? Channels::kMlp : Channels::kExperts);
  });
  return m;
}

// Configs of models in which some or all layers have Mamba or Mamba-2 in place of attention, or
// beside it.
//
// Defaults are those of the configuration classes in Transformers 5.24
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them. That some of
// them have no RoPE is not counted: it is read as if they turned.

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
