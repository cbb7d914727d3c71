// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf_keys.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardwright::hf {
namespace {

/// Whether layer_types lists a sliding layer; none when the key is absent.
std::optional<bool> lists_sliding_layer(const JsonReader& config) {
  const auto types = config.find_array("layer_types");
  if (!types) return std::nullopt;
  bool sliding = false;
  for (const JsonReader& type : *types) {
    const std::string name = type.value<std::string>();
    if (name != "full_attention" && name != "sliding_attention") {
      type.fail("full_attention or sliding_attention, because others are not modelled");
    }
    sliding = sliding || name == "sliding_attention";
  }
  return sliding;
}

}  // namespace

void require_neutral(const JsonReader& config, const NeutralKey& entry, std::string_view why) {
  if (!config.has(entry.key)) return;
  const nlohmann::json& value = config.raw()[std::string(entry.key)];
  const bool neutral = value.is_boolean()  ? static_cast<double>(value.get<bool>()) == entry.neutral
                       : value.is_number() ? value.get<double>() == entry.neutral
                                           : false;
  if (neutral) return;
  config.fail(entry.key, fmt::format("{} or no such key, because {}",
                                     value.is_boolean() ? (entry.neutral == 1 ? "true" : "false")
                                                        : fmt::format("{}", entry.neutral),
                                     why));
}

void refuse(const JsonReader& config, std::string_view key, double neutral) {
  require_neutral(config, {key, neutral}, "this is not modelled");
}

std::int64_t size(const JsonReader& config, std::string_view key, std::int64_t most) {
  return config.require<std::int64_t>(key, between<std::int64_t>(1, most));
}

std::int64_t size_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                     std::int64_t most) {
  return config.optional<std::int64_t>(key, fallback, between<std::int64_t>(1, most));
}

bool present(const JsonReader& config, std::string_view key) {
  return config.raw().contains(key);
}

Activation activation(const JsonReader& config, std::string_view key, std::string_view fallback) {
  const std::string name = config.optional<std::string>(key, std::string(fallback));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    return Activation::kGeluTanh;
  }
  if (name == "relu") return Activation::kRelu;
  config.fail(key, "one of silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu");
}

double norm_eps(const JsonReader& config, std::string_view key, double fallback) {
  return config.optional<double>(key, fallback, above(0.0));
}

std::int64_t divided_head_dim(const JsonReader& config, const Model& m,
                              std::string_view heads_key) {
  if (m.hidden % m.heads != 0) {
    config.fail(heads_key, fmt::format("a divisor of the hidden size {}", m.hidden));
  }
  return m.hidden / m.heads;
}

std::int64_t sliding_window(const JsonReader& config, const Model& m) {
  const auto window = config.find<std::int64_t>("sliding_window",
                                                between<std::int64_t>(1, model_limits::kPositions));
  const std::optional<bool> listed = lists_sliding_layer(config);
  const bool qwen = m.family == "qwen2" || m.family == "qwen3";
  if (!config.optional<bool>("use_sliding_window", !qwen)) return 0;
  if (listed && !*listed) return 0;
  if (qwen && !listed && config.optional<std::int64_t>("max_window_layers", 28) >= m.layers)
    return 0;
  const bool gemma = m.family == "gemma2" || m.family == "gemma3_text";
  if (!window && gemma && !present(config, "sliding_window")) return 4096;
  return window.value_or(0);
}

}  // namespace shardwright::hf
