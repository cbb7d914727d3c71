// SPDX-License-Identifier: Apache-2.0
// What the modules of a model are called in Transformers: classes that wrap policies name, and the
// paths at which a script finds layers, embedding, last norm and head.
#pragma once

#include <string_view>

#include "sim/core/model.h"

namespace shardwright::cli {

/// From transformers/models/<package>/modeling_<package>.py; paths start at the ForCausalLM model.
struct ModuleNames {
  std::string_view package;      // "llama"
  std::string_view layer_class;  // "LlamaDecoderLayer"
  std::string_view norm_class;   // empty: torch.nn.LayerNorm
  std::string_view layers;       // "model.layers"
  std::string_view embedding;    // "model.embed_tokens"
  std::string_view positions;    // learned position embedding; empty: none
  std::string_view last_norm;    // "model.norm"
  std::string_view head;         // "lm_head"
};

/// For every family that families.h reads.
const ModuleNames& module_names(const Model& model);

}  // namespace shardwright::cli
