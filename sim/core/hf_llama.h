// SPDX-License-Identifier: Apache-2.0
// Configs of llama and its relatives, which share their keys: RMSNorm, gated MLP, RoPE.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

Model read_llama(const JsonReader& config);
Model read_mistral(const JsonReader& config);
Model read_qwen2(const JsonReader& config);
Model read_qwen3(const JsonReader& config);
Model read_phi3(const JsonReader& config);
Model read_gemma(const JsonReader& config);
Model read_gemma2(const JsonReader& config);

}  // namespace shardwright::hf
