// SPDX-License-Identifier: Apache-2.0
// What configs of models share whose layers do not all attend.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// What a config calls a kind of layer.
struct LayerName {
  std::string_view name;
  Mixer mixer = Mixer::kAttention;
  std::optional<Channels> channels = {};  // none: the name does not say
  std::uint8_t form = 0;
};
using KindOf = std::function<LayerKind(std::int64_t layer)>;

/// Kinds by the list under `key`, one name a layer; what names do not say, or all where there is no
/// list, as `otherwise` says. Throws Error naming the entry, or the key where the list is not as
/// long as the model.
void set_kinds(const JsonReader& config, Model& m, std::string_view key,
               const std::vector<LayerName>& names, const KindOf& otherwise);

/// The keys of Mamba-2 layers as a family calls them, and its class's defaults.
struct Mamba2Keys {
  std::string_view heads, head_dim, groups, state, taps, chunk, convolution_bias, bias;
  std::int64_t usual_heads, usual_groups, usual_state, usual_chunk;
};
/// As bamba, granitemoehybrid and falcon_h1 call them.
extern const Mamba2Keys kHybridKeys;
/// `width`: of the layer where the file does not say head_dim; 0: expand times the model's.
Recurrence read_mamba2_layer(const JsonReader& config, const Model& m, const Mamba2Keys& keys,
                             std::int64_t width = 0);

/// linear_num_key_heads and its like, with the defaults given.
Recurrence read_gated_delta(const JsonReader& config, const Recurrence& usual);

}  // namespace shardwright::hf
