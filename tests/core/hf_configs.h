// SPDX-License-Identifier: Apache-2.0
// Small configurations in the format of Hugging Face, read and refused.
#pragma once

#include "sim/core/hf/config.h"
#include "tests/core/common.h"
#include "tests/support/files.h"

namespace shardwright::testing {

inline json llama_config() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 100, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 500000.0})");
}

inline json with(json config, const json& changes) {
  config.merge_patch(changes);  // null removes a key
  return config;
}

inline json family(const std::string& type, const std::string& architecture) {
  return with(llama_config(), {{"model_type", type}, {"architectures", {architecture}}});
}

/// The configuration of a model that ships.
inline json shipped(const std::string& name) {
  return json::parse(get(SHARDWRIGHT_TEST_DATA "/../../profiles/data/models/" + name + ".json"));
}

inline Model read(const json& config) {
  return parse_hf_config(config.dump(), "c.json", "tiny");
}

inline std::string problem_of(const json& config) {
  return refusal_of([&] { read(config); });
}

}  // namespace shardwright::testing
