// SPDX-License-Identifier: Apache-2.0
// Configs of models with latent attention, with defaults of the configuration classes in
// Transformers 5.23; ranks and the sizes of heads and experts must be in the file.
#include <fmt/core.h>

#include <string>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"

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
