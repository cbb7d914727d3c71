// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/mixers.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/core/hf/keys.h"

namespace shardwright::hf {

void set_kinds(const JsonReader& config, Model& m, std::string_view key,
               const std::vector<LayerName>& names, const KindOf& otherwise) {
  const auto types = config.find_array(key);
  if (types && static_cast<std::int64_t>(types->size()) != m.layers)
    config.fail(key, fmt::format("a type for each of the {} layers", m.layers));
  m.kinds.clear();
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    m.kinds.push_back(otherwise(layer));
    if (!types) continue;
    const JsonReader& type = (*types)[static_cast<std::size_t>(layer)];
    const std::string given = type.value<std::string>();
    const auto named = std::find_if(names.begin(), names.end(),
                                    [&](const LayerName& each) { return each.name == given; });
    if (named == names.end()) {
      std::vector<std::string_view> known;
      for (const LayerName& each : names) known.push_back(each.name);
      type.fail(fmt::format("{}", fmt::join(known, " or ")));
    }
    LayerKind& kind = m.kinds.back();
    kind = {named->mixer, named->channels.value_or(kind.channels), named->form};
  }
}

const Mamba2Keys kHybridKeys = {"mamba_n_heads",
                                "mamba_d_head",
                                "mamba_n_groups",
                                "mamba_d_state",
                                "mamba_d_conv",
                                "mamba_chunk_size",
                                "mamba_conv_bias",
                                "mamba_proj_bias",
                                128,
                                1,
                                256,
                                256};

Recurrence read_mamba2_layer(const JsonReader& config, const Model& m, const Mamba2Keys& keys,
                             std::int64_t width) {
  Recurrence r;
  r.kind = RecurrenceKind::kMamba2;
  r.value_heads = size_or(config, keys.heads, keys.usual_heads, model_limits::kHeads);
  const std::int64_t expand = size_or(
      config, config.has("mamba_expand") ? "mamba_expand" : "expand", 2, model_limits::kHeadDim);
  if (width == 0) width = expand * m.hidden;
  // "auto": what makes the layer as wide as that.
  const bool given = present(config, keys.head_dim) &&
                     config.raw()[std::string(keys.head_dim)].is_number_integer();
  if (given) {
    r.value_dim = size(config, keys.head_dim, model_limits::kHeadDim);
  } else {
    static_cast<void>(config.has(keys.head_dim));
    if (width % r.value_heads != 0) config.fail(keys.heads, fmt::format("a divisor of {}", width));
    r.value_dim = width / r.value_heads;
  }
  r.key_heads = size_or(config, keys.groups, keys.usual_groups, model_limits::kHeads);
  if (r.value_heads % r.key_heads != 0)
    config.fail(keys.groups, fmt::format("a divisor of the {} heads", r.value_heads));
  r.key_dim = size_or(config, keys.state, keys.usual_state, model_limits::kHeadDim);
  r.taps = size_or(config, keys.taps, 4, 64);
  r.chunk = size_or(config, keys.chunk, keys.usual_chunk, 1 << 14);
  r.convolution_bias = config.optional<bool>(keys.convolution_bias, true);
  r.bias = config.optional<bool>(keys.bias, false);
  return r;
}

Recurrence read_gated_delta(const JsonReader& config, const Recurrence& usual) {
  Recurrence r;
  r.kind = RecurrenceKind::kGatedDelta;
  r.key_heads = size_or(config, "linear_num_key_heads", usual.key_heads, model_limits::kHeads);
  r.value_heads =
      size_or(config, "linear_num_value_heads", usual.value_heads, model_limits::kHeads);
  if (r.value_heads % r.key_heads != 0) {
    config.fail("linear_num_key_heads",
                fmt::format("a divisor of the {} value heads", r.value_heads));
  }
  r.key_dim = size_or(config, "linear_key_head_dim", usual.key_dim, model_limits::kHeadDim);
  r.value_dim =
      size_or(config, "linear_value_head_dim",
              usual.value_dim > 0 ? usual.value_dim : 2 * r.key_dim, model_limits::kHeadDim);
  r.taps = size_or(config, "linear_conv_kernel_dim", 4, 64);
  r.chunk = 64;
  return r;
}

}  // namespace shardwright::hf
