// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardwright::hf {
namespace {

/// How many layers layer_types lists as windowed; none when the key is absent.
std::optional<std::int64_t> listed_windows(const JsonReader& config) {
  const auto types = config.find_array("layer_types");
  if (!types) return std::nullopt;
  std::int64_t windowed = 0;
  for (const JsonReader& type : *types) {
    const std::string name = type.value<std::string>();
    if (name != "full_attention" && name != "attention" && name != "sliding_attention" &&
        name != "chunked_attention") {
      type.fail(
          "full_attention, sliding_attention or chunked_attention, because others are not "
          "modelled");
    }
    windowed += name == "full_attention" || name == "attention" ? 0 : 1;
  }
  return windowed;
}

/// Windowed layers of files without layer_types, by what the family's class does.
std::int64_t usual_windows(const JsonReader& config, const Model& m) {
  if (m.family == "qwen2" || m.family == "qwen3" || m.family == "qwen2_moe" ||
      m.family == "qwen3_moe") {
    return std::max<std::int64_t>(
        0, m.layers - config.optional<std::int64_t>("max_window_layers", 28));
  }
  // Every second layer sees all, or every sixth.
  if (m.family == "gemma2" || m.family == "vaultgemma" || m.family == "gpt_oss")
    return (m.layers + 1) / 2;
  if (m.family == "gemma3_text") {
    return m.layers -
           m.layers / size_or(config, "sliding_window_pattern", 6, model_limits::kLayers);
  }
  if (m.family == "mellum") return 0;
  // The first two see all, every fourth, and the last one.
  if (m.family == "flint") {
    return m.layers - ((m.layers + 2) / 4 + 1 + (m.layers % 4 == 2 ? 0 : 1));
  }
  constexpr std::array<std::string_view, 9> kPatterns = {
      "cohere2_moe", "exaone4", "exaone_moe",  "olmo3",         "cohere2",
      "kolibri1",    "cwm",     "granite_swa", "granitemoe_swa"};
  if (std::find(kPatterns.begin(), kPatterns.end(), m.family) != kPatterns.end()) {
    const std::int64_t usual = m.family == "kolibri1" ? 5 : 4;
    const std::int64_t every =
        size_or(config, "sliding_window_pattern", usual, model_limits::kLayers);
    // These begin with one that sees all, the others end with it.
    const bool first = m.family == "cwm" || m.family.ends_with("_swa");
    return m.layers - (first ? (m.layers + every - 1) / every : m.layers / every);
  }
  return m.layers;
}

}  // namespace

void require_neutral(const JsonReader& config, const NeutralKey& entry, std::string_view why) {
  if (!config.has(entry.key)) return;
  const nlohmann::json& value = config.raw()[std::string(entry.key)];
  const bool neutral = value.is_boolean()  ? static_cast<double>(value.get<bool>()) == entry.neutral
                       : value.is_number() ? value.get<double>() == entry.neutral
                                           : false;
  if (neutral || (value.is_structured() && value.empty())) return;
  if (value.is_structured()) {
    config.fail(entry.key, fmt::format("no such key, because {}", why));
  }
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

void set_sliding_window(const JsonReader& config, Model& m) {
  const bool qwen = m.family.rfind("qwen", 0) == 0;
  const std::optional<std::int64_t> listed = listed_windows(config);
  const bool used = config.optional<bool>("use_sliding_window", !qwen);
  // A window that is not used may be 0.
  const auto window = config.find<std::int64_t>(
      "sliding_window", between<std::int64_t>(used ? 1 : 0, model_limits::kPositions));
  if (!used) return;
  const std::int64_t layers = std::min(m.layers, listed ? *listed : usual_windows(config, m));
  if (layers == 0) return;
  const bool gemma = m.family == "gemma2" || m.family == "gemma3_text" || m.family == "vaultgemma";
  const bool usual = gemma && !present(config, "sliding_window");
  m.sliding_window = usual ? 4096 : window.value_or(0);
  m.windowed_layers = m.sliding_window > 0 ? layers : 0;
}

}  // namespace shardwright::hf
