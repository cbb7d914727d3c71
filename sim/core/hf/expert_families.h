// SPDX-License-Identifier: Apache-2.0
// What configs of MoE models share, and families with experts or latent attention.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/base/json_file.h"
#include "sim/core/hf/dense_families.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// read_llama_like, planned only.
Model read_with_experts(const JsonReader& config, const std::string& family,
                        const LlamaLike& defaults);
/// The same with latent attention, of DeepSeek's keys.
Model read_with_latent(const JsonReader& config, const std::string& family, LlamaLike defaults);
/// The number of experts and of those that a token passes.
void set_routing(const JsonReader& config, Model& m, std::string_view count_key,
                 std::string_view per_token_key);
/// Throws Error naming the key where no layer is left to have experts.
void check_first_layer(const JsonReader& config, const Model& m, std::string_view key);
/// decoder_sparse_step and mlp_only_layers, of which only leading layers can be told.
void set_sparse_layers(const JsonReader& config, Model& m);
/// Leading layers without experts: mlp_layer_types, or a key that counts them.
std::int64_t leading_dense_layers(const JsonReader& config, std::string_view otherwise,
                                  std::int64_t fallback);
/// num_nextn_predict_layers: modules of multi-token prediction.
std::int64_t predicted_layers(const JsonReader& config);
/// The key of the number of experts: Transformers 5 calls it as mixtral does in some families.
std::string_view experts_key(const JsonReader& config);

}  // namespace shardwright::hf
