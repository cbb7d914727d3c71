// SPDX-License-Identifier: Apache-2.0
// Configs of gemma4, whose full and windowed layers have heads of other sizes, with defaults of the
// configuration class in Transformers 5.24.
//
// Layers with experts have the MLP beside them: it counts as a shared expert, and the scale of the
// router's input as one of the norms. Embeddings for each layer and layers that share keys and
// values (E2B, E4B) are refused.
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/hf/experts.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/llama.h"
#include "sim/core/hf/mixers.h"

namespace shardwright::hf {
namespace {

constexpr std::uint8_t kWindowedForm = 1, kFullForm = 2;  // forms

/// What per_layer_config of Transformers 5 says of all full layers alike, or nothing.
std::optional<JsonReader> full_layers(const JsonReader& config, const Model& m) {
  const auto by_layer = config.find_object("per_layer_config");
  if (!by_layer) return std::nullopt;
  const std::size_t digits = fmt::format("{}", m.layers - 1).size();
  std::optional<JsonReader> first;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string key = fmt::format("{:0{}}", layer, digits);
    const bool listed = by_layer->has(key);
    if (listed != (m.kind(layer).form == kFullForm))
      config.fail("per_layer_config", "sizes of the layers with full attention");
    if (!listed) continue;
    const JsonReader sizes = by_layer->require_object(key);
    if (first && sizes.raw() != first->raw())
      by_layer->fail(key, "the sizes of the other layers with full attention");
    first = sizes;
  }
  return first;
}

void set_forms(const JsonReader& config, Model& m) {
  LayerForm windowed = {m.heads, m.kv_heads, m.head_dim, true, false}, full = windowed;
  const bool one_product = config.optional<bool>("attention_k_eq_v", false);
  full.windowed = false;
  full.values_are_keys = one_product;
  const auto sizes = full_layers(config, m);
  const JsonReader& source = sizes ? *sizes : config;
  full.head_dim = sizes ? size_or(source, "head_dim", m.head_dim, model_limits::kHeadDim)
                        : size_or(source, "global_head_dim", 512, model_limits::kHeadDim);
  // Only with one product for both does the number of key heads count.
  if (sizes) {
    full.kv_heads = size_or(source, "num_key_value_heads", m.kv_heads, model_limits::kHeads);
  } else if (one_product) {
    full.kv_heads = size_or(source, "num_global_key_value_heads", m.kv_heads, model_limits::kHeads);
  } else {
    static_cast<void>(config.has("num_global_key_value_heads"));
  }
  if (full.heads % full.kv_heads != 0) {
    source.fail(sizes ? "num_key_value_heads" : "num_global_key_value_heads",
                fmt::format("a divisor of the {} num_attention_heads", full.heads));
  }
  m.forms = {windowed, full};
}

void set_gemma_experts(const JsonReader& config, Model& m) {
  set_routing(config, m, "num_experts", "top_k_experts");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = m.ffn;
  m.experts.router_bias = true;  // per_expert_scale
  m.norms_per_layer = 8;         // three more, and the router's scale
}

}  // namespace

Model read_gemma4_text(const JsonReader& config) {
  Model m = read_planned(config, "gemma4_text",
                         {.max_positions = 131072,
                          .activation = "gelu_pytorch_tanh",
                          .activation_key = "hidden_activation",
                          .tied = true,
                          .head_dim = 256,
                          .angles_by_layer = true,
                          .mixes = true},
                         "has other heads in full and windowed layers");
  if (!config.has("hidden_size_per_layer_input") ||
      config.require<std::int64_t>("hidden_size_per_layer_input") != 0) {
    config.fail("hidden_size_per_layer_input",
                "0, because embeddings for each layer are not modelled");
  }
  static_cast<void>(config.has("vocab_size_per_layer_input"));
  static_cast<void>(config.has("use_double_wide_mlp"));  // of layers that share keys and values
  refuse(config, "num_kv_shared_layers", 0);
  // Text attends causally all the same.
  if (config.has("use_bidirectional_attention"))
    config.require_choice("use_bidirectional_attention", {"vision"});
  set_attention_bias(config, m, false);
  m.qk_norm = m.value_norm = true;
  m.norms_per_layer = 4;
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  m.logit_softcap = config.optional<double>("final_logit_softcapping", 0.0, at_least(0.0));
  m.sliding_window = size_or(config, "sliding_window", 512, model_limits::kPositions);
  const bool experts = config.optional<bool>("enable_moe_block", false);
  if (experts) {
    set_gemma_experts(config, m);
  } else {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"})
      static_cast<void>(config.has(key));
  }
  const Channels channels = experts ? Channels::kExperts : Channels::kMlp;
  // Every sixth layer sees all, and the last one.
  set_kinds(config, m, "layer_types",
            {{"sliding_attention", Mixer::kAttention, channels, kWindowedForm},
             {"full_attention", Mixer::kAttention, channels, kFullForm}},
            [&](std::int64_t layer) {
              const bool full = (layer + 1) % 6 == 0;
              return LayerKind{Mixer::kAttention, channels, full ? kFullForm : kWindowedForm};
            });
  m.kinds.back().form = kFullForm;
  set_forms(config, m);
  for (const LayerKind kind : m.kinds) m.windowed_layers += kind.form == kWindowedForm ? 1 : 0;
  return m;
}

}  // namespace shardwright::hf
