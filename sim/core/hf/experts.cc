// SPDX-License-Identifier: Apache-2.0
// Configs of MoE models.
#include "sim/core/hf/experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"

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
