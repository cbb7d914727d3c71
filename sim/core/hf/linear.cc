// SPDX-License-Identifier: Apache-2.0
// Configs of models in which some layers have delta rules, lightning attention or short
// convolutions in place of attention.
//
// Defaults are those of the configuration classes in Transformers 5.24; sizes of experts must be in
// the file. A bias that balances experts without being trained is a buffer and no parameter.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"
#include "sim/core/hf/mixers.h"

namespace shardwright::hf {
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

}  // namespace shardwright::hf
