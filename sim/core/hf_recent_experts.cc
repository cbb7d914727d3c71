// SPDX-License-Identifier: Apache-2.0
// Configs of MoE models of 2025 and 2026, with defaults of the configuration classes in
// Transformers 5.23; sizes of experts must be in the file.
//
// A bias that balances experts without being trained is a buffer in Transformers and no parameter
// here; where it is a parameter there (ernie4_5_moe) it is counted.
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "sim/core/hf_experts.h"
#include "sim/core/hf_families.h"
#include "sim/core/hf_keys.h"
#include "sim/core/hf_llama.h"

namespace shardwright::hf {
namespace {

/// n_routed_experts, n_shared_experts, groups and leading dense layers, as DeepSeek names them.
void set_deepseek_experts(const JsonReader& config, Model& m, std::int64_t leading) {
  set_routing(config, m, "n_routed_experts", "num_experts_per_tok");
  Experts& e = m.experts;
  e.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  e.first_layer = leading_dense_layers(config, "first_k_dense_replace", leading);
  check_first_layer(config, m, "first_k_dense_replace");
  e.shared_ffn =
      e.ffn * config.optional<std::int64_t>("n_shared_experts", 1, between<std::int64_t>(0, 64));
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
  m.mtp_layers =
      config.optional<std::int64_t>("num_nextn_predict_layers", 0, between<std::int64_t>(0, 16));
  return m;
}

Model read_glm4_moe_lite(const JsonReader& config) {
  Model m = read_deepseek(config, "glm4_moe_lite");
  m.mtp_layers =
      config.optional<std::int64_t>("num_nextn_predict_layers", 0, between<std::int64_t>(0, 16));
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

Model read_granitemoe(const JsonReader& config) {
  Model m = read_with_experts(config, "granitemoe", {});
  set_attention_bias(config, m, false);
  set_routing(config, m, "num_local_experts", "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  return m;
}

Model read_olmoe(const JsonReader& config) {
  Model m = read_with_experts(config, "olmoe", {.max_positions = 4096, .eps = 1e-5});
  set_attention_bias(config, m, false);
  m.qk_norm = m.qk_norm_whole = true;
  set_routing(config, m, config.has("num_experts") ? "num_experts" : "num_local_experts",
              "num_experts_per_tok");
  m.experts.ffn = m.ffn;
  return m;
}

Model read_qwen3_vl_moe_text(const JsonReader& config) {
  Model m = read_with_experts(config, "qwen3_moe",
                              {.max_positions = 128000, .head_dim = 128, .angle_sections = true});
  set_attention_bias(config, m, false);
  m.qk_norm = true;
  set_routing(config, m, config.has("num_experts") ? "num_experts" : "num_local_experts",
              "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  refuse(config, "decoder_sparse_step", 1);
  refuse(config, "mlp_only_layers", 0);
  return m;
}

}  // namespace shardwright::hf
