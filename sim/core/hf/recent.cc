// SPDX-License-Identifier: Apache-2.0
// Configs of families of 2025 and 2026 without experts that are made of what others have: norms of
// queries and keys, windows in some layers, multipliers. Most are planned only.
//
// Defaults are those of the configuration classes in Transformers 5.23
// (models/FAMILY/configuration_FAMILY.py), because files leave out what equals them.
#include <string>
#include <string_view>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"

namespace shardwright::hf {
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

}  // namespace shardwright::hf
