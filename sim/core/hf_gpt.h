// SPDX-License-Identifier: Apache-2.0
// Configs of the families with LayerNorm and a plain MLP: gpt2, gpt_neox and mpt. The keys of mpt
// are those of LLM Foundry, which trains models that Transformers itself cannot: learned positions,
// biases.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

Model read_gpt2(const JsonReader& config);
Model read_gpt_neox(const JsonReader& config);
Model read_mpt(const JsonReader& config);

}  // namespace shardwright::hf
