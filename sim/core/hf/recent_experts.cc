// SPDX-License-Identifier: Apache-2.0
// Configs of MoE models of 2025 and 2026, with defaults of the configuration classes in
// Transformers 5.23; sizes of experts must be in the file.
//
// A bias that balances experts without being trained is a buffer in Transformers and no parameter
// here; where it is a parameter there (ernie4_5_moe) it is counted.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"

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
