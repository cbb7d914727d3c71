// SPDX-License-Identifier: Apache-2.0
// What configs of MoE models share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/hf_llama.h"
#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// read_llama_like, planned only.
Model read_with_experts(const JsonReader& config, const std::string& family,
                        const LlamaLike& defaults);
/// The number of experts and of those that a token passes.
void set_routing(const JsonReader& config, Model& m, std::string_view count_key,
                 std::string_view per_token_key);
/// Throws Error naming the key where no layer is left to have experts.
void check_first_layer(const JsonReader& config, const Model& m, std::string_view key);
/// Leading layers without experts: mlp_layer_types, or a key that counts them.
std::int64_t leading_dense_layers(const JsonReader& config, std::string_view otherwise,
                                  std::int64_t fallback);
/// What DeepSeek-V2, V3 and those built like them share.
Model read_deepseek(const JsonReader& config, const std::string& family);

}  // namespace shardwright::hf
