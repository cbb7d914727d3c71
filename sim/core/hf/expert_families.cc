// SPDX-License-Identifier: Apache-2.0
// Configs of MoE models.
#include "sim/core/hf/expert_families.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/hf/dense_families.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"

// Defaults are those of the configuration classes in Transformers 4.5x, because files leave out
// what equals them; sizes of experts must be in the file.

namespace shardwright::hf {

Model read_with_experts(const JsonReader& config, const std::string& family,
                        const LlamaLike& defaults) {
  Model m = read_llama_like(config, family, defaults);
  m.planning_only = "has experts";
  return m;
}

void set_routing(const JsonReader& config, Model& m, std::string_view count_key,
                 std::string_view per_token_key) {
  m.experts.count = size(config, count_key, model_limits::kExperts);
  m.experts.per_token = size(config, per_token_key, model_limits::kExperts);
  if (m.experts.per_token > m.experts.count) {
    config.fail(per_token_key, fmt::format("at most the {} of {}", m.experts.count, count_key));
  }
}

std::int64_t predicted_layers(const JsonReader& config) {
  return config.optional<std::int64_t>("num_nextn_predict_layers", 0, between<std::int64_t>(0, 16));
}

std::string_view experts_key(const JsonReader& config) {
  return config.has("num_experts") ? "num_experts" : "num_local_experts";
}

void check_first_layer(const JsonReader& config, const Model& m, std::string_view key) {
  if (m.experts.first_layer < m.layers) return;
  config.fail(key, fmt::format("less than the {} layers, so that some have experts", m.layers));
}

void set_sparse_layers(const JsonReader& config, Model& m) {
  Experts& e = m.experts;
  e.every = size_or(config, "decoder_sparse_step", 1, m.layers);
  e.first_layer = e.every - 1;
  const auto dense = config.find_array("mlp_only_layers");
  if (!dense || dense->empty()) return;
  std::vector<std::int64_t> layers;
  for (const JsonReader& layer : *dense) layers.push_back(layer.value<std::int64_t>());
  std::sort(layers.begin(), layers.end());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != static_cast<std::int64_t>(i) || e.every != 1) {
      config.fail("mlp_only_layers", "leading layers, because others are not modelled");
    }
  }
  e.first_layer = static_cast<std::int64_t>(layers.size());
  check_first_layer(config, m, "mlp_only_layers");
}

namespace {

Model read_qwen_moe(const JsonReader& config, const std::string& family,
                    const LlamaLike& defaults) {
  Model m = read_with_experts(config, family, defaults);
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  set_sparse_layers(config, m);
  refuse(config, "mlp_bias", 0);
  return m;
}

}  // namespace

/// mlp_layer_types of Transformers 5: "dense" for leading layers, then "sparse".
std::int64_t leading_dense_layers(const JsonReader& config, std::string_view otherwise,
                                  std::int64_t fallback) {
  const auto types = config.find_array("mlp_layer_types");
  if (!types) {
    return config.optional<std::int64_t>(otherwise, fallback,
                                         between<std::int64_t>(0, model_limits::kLayers));
  }
  static_cast<void>(config.has(otherwise));  // says the same
  std::int64_t dense = 0, at = 0;
  for (const JsonReader& type : *types) {
    const std::string name = type.value<std::string>();
    if (name != "dense" && name != "sparse") type.fail("dense or sparse");
    if (name == "dense" && dense != at) type.fail("dense in leading layers only");
    dense += name == "dense" ? 1 : 0;
    ++at;
  }
  return dense;
}

Model read_mixtral(const JsonReader& config) {
  Model m = read_with_experts(config, "mixtral", {.max_positions = 131072, .eps = 1e-5});
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  refuse(config, "attention_bias", 0);
  refuse(config, "mlp_bias", 0);
  return m;
}

Model read_qwen2_moe(const JsonReader& config) {
  Model m = read_qwen_moe(config, "qwen2_moe", {.max_positions = 32768});
  m.qkv_bias = config.optional<bool>("qkv_bias", true);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  m.experts.shared_gate = true;
  return m;
}

Model read_qwen3_moe(const JsonReader& config) {
  Model m = read_qwen_moe(config, "qwen3_moe", {.max_positions = 32768});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  return m;
}

Model read_gpt_oss(const JsonReader& config) {
  Model m =
      read_with_experts(config, "gpt_oss", {.max_positions = 131072, .eps = 1e-5, .head_dim = 64});
  set_attention_bias(config, m, true);
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  m.experts.router_bias = m.experts.bias = true;
  m.attention_sinks = true;
  refuse(config, "mlp_bias", 0);
  return m;
}

Model read_llama4(const JsonReader& config) {
  Model m = read_with_experts(config, "llama4_text",
                              {.max_positions = 131072, .eps = 1e-5, .head_dim = 128});
  set_attention_bias(config, m, false);
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = e.shared_ffn = m.ffn;
  m.ffn = size(config, "intermediate_size_mlp", model_limits::kFfn);
  e.every = size_or(config, "interleave_moe_layer_step", 1, m.layers);
  e.first_layer = e.every - 1;
  const auto listed = config.find_array("moe_layers");
  if (listed && static_cast<std::int64_t>(listed->size()) != m.expert_layers()) {
    config.fail("moe_layers",
                fmt::format("the {} layers of interleave_moe_layer_step, because others are not "
                            "modelled",
                            m.expert_layers()));
  }
  // Norms of queries and keys have no weights. Every fourth layer has no RoPE and sees everything;
  // the others see the chunk that they are in.
  if (present(config, "attention_chunk_size") && !config.has("attention_chunk_size")) return m;
  m.sliding_window = size_or(config, "attention_chunk_size", 8192, model_limits::kPositions);
  m.chunked_attention = true;
  m.windowed_layers =
      m.layers - m.layers / size_or(config, "no_rope_layer_interval", 4, model_limits::kLayers);
  const auto rotated = config.find_array("no_rope_layers");
  if (rotated && !rotated->empty()) {
    m.windowed_layers =
        std::count_if(rotated->begin(), rotated->end(), [](const JsonReader& layer) {
          return layer.value<std::int64_t>(between<std::int64_t>(0, 1)) == 1;
        });
    m.windowed_layers = std::min(m.windowed_layers, m.layers);
  }
  return m;
}

Model read_grok1(const JsonReader& config) {
  Model m = read_with_experts(
      config, "grok-1", {.max_positions = 8192, .eps = 1e-5, .activation = "gelu", .tied = true});
  set_routing(config, m, "num_experts",
              config.has("num_experts_per_tok") ? "num_experts_per_tok" : "num_experts_per_token");
  m.experts.ffn = m.ffn;
  m.norms_per_layer = 4;
  m.embedding_scale = config.optional<double>("embedding_multiplier_scale", 1.0, above(0.0));
  return m;
}

}  // namespace shardwright::hf

// Configs of MoE models of 2025 and 2026, with defaults of the configuration classes in
// Transformers 5.23; sizes of experts must be in the file.
//
// A bias that balances experts without being trained is a buffer in Transformers and no parameter
// here; where it is a parameter there (ernie4_5_moe) it is counted.

namespace shardwright::hf {
namespace {

/// n_routed_experts, n_shared_experts, groups and leading dense layers, as DeepSeek names them;
/// others leave out the n_ and routed.
void set_deepseek_experts(const JsonReader& config, Model& m, std::int64_t leading,
                          std::string_view count = "n_routed_experts",
                          std::string_view shared = "n_shared_experts") {
  set_routing(config, m, count, "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  e.first_layer = leading_dense_layers(config, "first_k_dense_replace", leading);
  check_first_layer(config, m, "first_k_dense_replace");
  e.shared_ffn = e.ffn * config.optional<std::int64_t>(shared, 1, between<std::int64_t>(0, 64));
  e.groups = size_or(config, "n_group", 1, e.count);
  e.groups_per_token = size_or(config, "topk_group", e.groups, e.groups);
}

}  // namespace

Model read_glm4_moe(const JsonReader& config) {
  Model m = read_with_experts(config, "glm4_moe",
                              {.max_positions = 131072, .eps = 1e-5, .rotary_fraction = 0.5});
  m.qkv_bias = config.optional<bool>("attention_bias", false);
  m.qk_norm = config.optional<bool>("use_qk_norm", false);
  set_deepseek_experts(config, m, 1);
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_dots1(const JsonReader& config) {
  Model m = read_with_experts(config, "dots1", {.max_positions = 2048});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  set_deepseek_experts(config, m, 0);
  return m;
}

Model read_minimax_m2(const JsonReader& config) {
  Model m = read_with_experts(config, "minimax_m2", {.max_positions = 196608, .head_dim = 128});
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  // qk_norm_type per_layer: one weight for every channel of all heads.
  if (config.has("qk_norm_type")) config.require_choice("qk_norm_type", {"per_layer"});
  m.qk_norm = m.qk_norm_whole = config.optional<bool>("use_qk_norm", true);
  m.mtp_layers =
      config.optional<bool>("use_mtp", false)
          ? config.optional<std::int64_t>("num_mtp_modules", 0, between<std::int64_t>(0, 16)) *
                config.optional<std::int64_t>("mtp_transformer_layers", 1,
                                              between<std::int64_t>(0, 16))
          : 0;
  return m;
}

Model read_ernie4_5_moe(const JsonReader& config) {
  Model m = read_with_experts(config, "ernie4_5_moe",
                              {.max_positions = 131072, .eps = 1e-5, .tied = true});
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = config.optional<bool>("use_bias", false);
  set_routing(config, m, "moe_num_experts", "moe_k");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  e.first_layer = config.optional<std::int64_t>("moe_layer_start_index", 1,
                                                between<std::int64_t>(0, model_limits::kLayers));
  check_first_layer(config, m, "moe_layer_start_index");
  e.every = size_or(config, "moe_layer_interval", 1, m.layers);
  const std::int64_t last = config.optional<std::int64_t>("moe_layer_end_index", -1);
  if (last != -1 && last != m.layers - 1) {
    config.fail(
        "moe_layer_end_index",
        fmt::format("{}, because layers behind those with experts are not modelled", m.layers - 1));
  }
  e.shared_ffn = e.ffn * config.optional<std::int64_t>("moe_num_shared_experts", 2,
                                                       between<std::int64_t>(0, 64));
  e.router_bias = true;
  return m;
}

namespace {

Model read_granite_experts(const JsonReader& config, const std::string& family) {
  Model m = read_with_experts(config, family, {});
  set_attention_bias(config, m, false);
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  return m;
}

}  // namespace

Model read_granitemoe(const JsonReader& config) {
  return read_granite_experts(config, "granitemoe");
}

Model read_granitemoeshared(const JsonReader& config) {
  Model m = read_granite_experts(config, "granitemoeshared");
  m.experts.shared_ffn = config.optional<std::int64_t>(
      "shared_intermediate_size", 0, between<std::int64_t>(0, model_limits::kFfn));
  return m;
}

Model read_granitemoe_swa(const JsonReader& config) {
  Model m = read_granitemoeshared(config);
  m.family = "granitemoe_swa";
  m.attention_sinks = true;
  set_sliding_window(config, m);
  return m;
}

namespace {

Model read_olmo_experts(const JsonReader& config, const std::string& family, double eps) {
  Model m = read_with_experts(config, family, {.max_positions = 4096, .eps = eps});
  set_attention_bias(config, m, false);
  m.qk_norm = m.qk_norm_whole = true;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  return m;
}

}  // namespace

Model read_olmoe(const JsonReader& config) {
  return read_olmo_experts(config, "olmoe", 1e-5);
}

Model read_flex_olmo(const JsonReader& config) {
  return read_olmo_experts(config, "flex_olmo", 1e-6);
}

Model read_solar_open(const JsonReader& config) {
  // All of its layers have experts, so that files may lack the size of an MLP without.
  Model m = read_with_experts(
      config, "solar_open",
      {.max_positions = 131072, .eps = 1e-5, .head_dim = 128, .ffn_key = "moe_intermediate_size"});
  set_attention_bias(config, m, false);
  refuse(config, "use_qk_norm", 0);
  set_deepseek_experts(config, m, 0);
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_exaone_moe(const JsonReader& config) {
  Model m = read_with_experts(config, "exaone_moe", {.max_positions = 2048, .eps = 1e-5});
  m.qk_norm = true;
  set_deepseek_experts(config, m, 1, "num_experts", "num_shared_experts");
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_hy_v3(const JsonReader& config) {
  Model m =
      read_with_experts(config, "hy_v3", {.max_positions = 131072, .eps = 1e-5, .head_dim = 128});
  set_attention_bias(config, m, false);
  refuse(config, "mlp_bias", 0);
  m.qk_norm = true;
  set_deepseek_experts(config, m, 1, "num_experts", "num_shared_experts");
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_mellum(const JsonReader& config) {
  Model m = read_with_experts(config, "mellum",
                              {.max_positions = 131072, .head_dim = 128, .angles_by_layer = true});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.first_layer = leading_dense_layers(config, "first_k_dense_replace", 0);
  check_first_layer(config, m, "mlp_layer_types");
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_kolibri1(const JsonReader& config) {
  Model m = read_with_experts(
      config, "kolibri1",
      {.max_positions = 262144, .head_dim = 128, .ffn_key = "moe_intermediate_size"});
  m.qk_norm = true;
  m.norms_per_layer = 4;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  return m;
}

Model read_flint(const JsonReader& config) {
  Model m = read_with_experts(config, "flint", {.max_positions = 262144, .head_dim = 128});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  m.attention_sinks = true;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  set_sparse_layers(config, m);
  return m;
}

Model read_cohere2_moe(const JsonReader& config) {
  Model m = read_with_experts(config, "cohere2_moe", {.max_positions = 8192, .tied = true});
  set_attention_bias(config, m, false);
  m.norm = Normalization::kLayerNorm;
  m.norm_eps = norm_eps(config, "layer_norm_eps", 1e-5);
  m.parallel_residual = true;
  m.norms_per_layer = 1;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = m.ffn;
  e.first_layer = leading_dense_layers(config, "first_k_dense_replace", 0);
  check_first_layer(config, m, "mlp_layer_types");
  e.shared_ffn =
      e.ffn * config.optional<std::int64_t>("num_shared_experts", 0, between<std::int64_t>(0, 64));
  m.ffn = size_or(config, "prefix_dense_intermediate_size", m.ffn, model_limits::kFfn);
  return m;
}

namespace {

/// A number, or a list that gives each layer the same.
std::int64_t same_in_layers(const JsonReader& config, std::string_view key, std::int64_t most) {
  if (!config.has(key) || !config.raw()[std::string(key)].is_array())
    return size(config, key, most);
  const std::vector<JsonReader> layers = config.require_array(key);
  std::vector<std::int64_t> values;
  for (const JsonReader& value : layers) {
    values.push_back(value.value<std::int64_t>(between<std::int64_t>(1, most)));
    if (values.back() != values.front())
      value.fail(
          fmt::format("{} as in the first layer, because others are not modelled", values.front()));
  }
  if (values.empty()) config.fail(key, "a number for every layer");
  return values.front();
}

}  // namespace

Model read_hunyuan_v1_moe(const JsonReader& config) {
  Model m = read_with_experts(config, "hunyuan_v1_moe", {.max_positions = 2048, .eps = 1e-5});
  set_attention_bias(config, m, false);
  m.qk_norm = config.optional<bool>("use_qk_norm", true);
  Experts& e = m.experts;
  e.count = same_in_layers(config, experts_key(config), model_limits::kExperts);
  e.per_token =
      same_in_layers(config, config.has("moe_topk") ? "moe_topk" : "num_experts_per_tok", e.count);
  e.ffn = config.has("moe_intermediate_size")
              ? same_in_layers(config, "moe_intermediate_size", model_limits::kFfn)
              : m.ffn;
  e.shared_ffn =
      m.ffn *
      (config.has("num_shared_expert") ? same_in_layers(config, "num_shared_expert", 64) : 1);
  return m;
}

Model read_qwen3_vl_moe_text(const JsonReader& config) {
  Model m = read_with_experts(config, "qwen3_moe",
                              {.max_positions = 128000, .head_dim = 128, .angle_sections = true});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  refuse(config, "decoder_sparse_step", 1);
  refuse(config, "mlp_only_layers", 0);
  return m;
}

}  // namespace shardwright::hf

// Configs of models with latent attention, with defaults of the configuration classes in
// Transformers 5.23; ranks and the sizes of heads and experts must be in the file.

namespace shardwright::hf {

Model read_with_latent(const JsonReader& config, const std::string& family, LlamaLike defaults) {
  LatentAttention latent;
  latent.kv_rank = size(config, "kv_lora_rank", model_limits::kHidden);
  if (config.has("q_lora_rank")) {
    latent.q_rank = size(config, "q_lora_rank", model_limits::kHidden);
  }
  latent.nope_dim = size(config, "qk_nope_head_dim", model_limits::kHeadDim);
  latent.rope_dim = size(config, "qk_rope_head_dim", model_limits::kHeadDim);
  latent.v_dim = size(config, "v_head_dim", model_limits::kHeadDim);
  // RoPE turns only its own part of a head; some files call that part head_dim.
  defaults.head_dim = latent.rope_dim;
  Model m = read_with_experts(config, family, defaults);
  m.latent = latent;
  m.head_dim = latent.nope_dim + latent.rope_dim;
  if (m.kv_heads != m.heads) {
    config.fail("num_key_value_heads",
                fmt::format("{}, because latent attention gives each head its key", m.heads));
  }
  refuse(config, "attention_bias", 0);
  return m;
}

namespace {

/// What DeepSeek-V2, V3 and those built like them share.
Model read_deepseek(const JsonReader& config, const std::string& family,
                    std::int64_t max_positions = 4096) {
  Model m = read_with_latent(config, family, {.max_positions = max_positions, .eps = 1e-6});
  set_routing(config, m, "n_routed_experts", "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  e.first_layer = leading_dense_layers(config, "first_k_dense_replace", 0);
  check_first_layer(config, m, "first_k_dense_replace");
  refuse(config, "moe_layer_freq", 1);
  e.shared_ffn =
      e.ffn * config.optional<std::int64_t>("n_shared_experts", 0, between<std::int64_t>(0, 64));
  e.groups = size_or(config, "n_group", 1, e.count);
  e.groups_per_token = size_or(config, "topk_group", e.groups, e.groups);
  return m;
}

}  // namespace

Model read_deepseek_v2(const JsonReader& config) {
  return read_deepseek(config, "deepseek_v2");
}

Model read_deepseek_v3(const JsonReader& config) {
  Model m = read_deepseek(config, "deepseek_v3");
  m.experts.router_bias = true;  // e_score_correction_bias
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_kimi_k2(const JsonReader& config) {
  Model m = read_deepseek_v3(config);
  m.family = "kimi_k2";
  return m;
}

Model read_glm4_moe_lite(const JsonReader& config) {
  Model m = read_deepseek(config, "glm4_moe_lite");
  m.mtp_layers = predicted_layers(config);
  return m;
}

Model read_mistral4(const JsonReader& config) {
  return read_deepseek(config, "mistral4", 1048576);
}

}  // namespace shardwright::hf
