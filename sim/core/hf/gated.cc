// SPDX-License-Identifier: Apache-2.0
// Configs of models with experts whose attention has gates and windows in most layers, with
// defaults of the configuration classes in Transformers 5.24; sizes of experts must be in the file.
// The bias that balances experts is a parameter there.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
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

constexpr std::string_view kSliding = "sliding_attention", kWhole = "full_attention";

Channels channels_of(std::int64_t layer, std::int64_t dense) {
  return layer < dense ? Channels::kMlp : Channels::kExperts;
}

/// A form of attention for each number of heads that layers have, with the window or without.
void set_forms_by_heads(const JsonReader& config, Model& m,
                        const std::vector<std::int64_t>& heads) {
  for (std::size_t layer = 0; layer < m.kinds.size(); ++layer) {
    LayerForm form = {heads[layer], m.kv_heads, m.head_dim, m.kinds[layer].form == 1, false};
    if (form.heads % form.kv_heads != 0)
      config.fail("num_attention_heads_per_layer",
                  fmt::format("multiples of the {} key and value heads", m.kv_heads));
    auto at = std::find(m.forms.begin(), m.forms.end(), form);
    if (at == m.forms.end()) at = m.forms.insert(at, form);
    if (m.forms.size() >= kMostForms) {
      config.fail("num_attention_heads_per_layer",
                  "one number for layers with a window and one for those without");
    }
    m.windowed_layers += form.windowed ? 1 : 0;
    m.kinds[layer].form = static_cast<std::uint8_t>(at - m.forms.begin() + 1);
  }
}

}  // namespace

/// Trinity: a gate for every channel; every fourth layer sees all.
Model read_afmoe(const JsonReader& config) {
  Model m = read_with_experts(
      config, "afmoe", {.max_positions = 16384, .eps = 1e-5, .head_dim = 128, .mixes = true});
  set_attention_bias(config, m, false);
  m.qk_norm = m.attention_gate = m.experts.router_bias = true;
  m.norms_per_layer = 4;
  if (config.optional<bool>("mup_enabled", false))
    m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = m.experts.ffn * config.optional<std::int64_t>(
                                             "num_shared_experts", 2, between<std::int64_t>(0, 64));
  m.sliding_window = size_or(config, "sliding_window", 1024, model_limits::kPositions);
  const auto dense =
      config.optional<std::int64_t>("num_dense_layers", 1, between<std::int64_t>(0, m.layers - 1));
  const std::int64_t every =
      size_or(config, "global_attn_every_n_layers", 4, model_limits::kLayers);
  set_kinds(config, m, "layer_types",
            {{kSliding, Mixer::kAttention, {}, 1}, {kWhole, Mixer::kAttention, {}, 2}},
            [&](std::int64_t layer) {
              const bool full = (layer + 1) % every == 0;
              return LayerKind{Mixer::kAttention, channels_of(layer, dense),
                               static_cast<std::uint8_t>(full ? 2 : 1)};
            });
  set_forms_by_heads(config, m, std::vector<std::int64_t>(m.kinds.size(), m.heads));
  return m;
}

/// Gates for heads or channels; layers may differ in how many heads they have.
Model read_laguna(const JsonReader& config) {
  Model m = read_with_experts(
      config, "laguna",
      {.max_positions = 131072, .head_dim = 128, .angles_by_layer = true, .mixes = true});
  set_attention_bias(config, m, false);
  m.qk_norm = m.experts.router_bias = true;
  const bool named = config.raw().contains("gating") && config.raw()["gating"].is_string();
  if (named) config.require_choice("gating", {"per-head", "per-channel"});
  m.attention_gate = named && config.require<std::string>("gating") == "per-channel";
  m.head_gate = !m.attention_gate && (named || config.optional<bool>("gating", true));
  if (!m.attention_gate && !m.head_gate) m.attention_gate = true;  // false: of every channel
  set_routing(config, m, experts_key(config), "num_experts_per_tok");
  m.experts.ffn = size(config, "moe_intermediate_size", model_limits::kFfn);
  m.experts.shared_ffn = size(config, "shared_expert_intermediate_size", model_limits::kFfn);
  m.sliding_window = size_or(config, "sliding_window", 512, model_limits::kPositions);
  const std::int64_t dense = leading_dense_layers(config, "first_k_dense_replace", 1);
  set_kinds(config, m, "layer_types",
            {{kSliding, Mixer::kAttention, {}, 1}, {kWhole, Mixer::kAttention, {}, 2}},
            [&](std::int64_t layer) {
              return LayerKind{Mixer::kAttention, channels_of(layer, dense), 2};
            });
  std::vector<std::int64_t> heads(m.kinds.size(), m.heads);
  if (const auto given = config.find_array("num_attention_heads_per_layer")) {
    if (given->size() != heads.size()) {
      config.fail("num_attention_heads_per_layer",
                  fmt::format("a number for each of the {} layers", m.layers));
    }
    std::transform(given->begin(), given->end(), heads.begin(), [](const JsonReader& each) {
      return each.value<std::int64_t>(between<std::int64_t>(1, model_limits::kHeads));
    });
  }
  set_forms_by_heads(config, m, heads);
  return m;
}

}  // namespace shardwright::hf
