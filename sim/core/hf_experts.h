// SPDX-License-Identifier: Apache-2.0
// Configs of mixtures of experts: mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2,
// gpt_oss, llama4_text, grok-1. They are planned only; no kernel of the executor routes tokens.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

Model read_mixtral(const JsonReader& config);
Model read_qwen2_moe(const JsonReader& config);
Model read_qwen3_moe(const JsonReader& config);
Model read_deepseek_v2(const JsonReader& config);
Model read_deepseek_v3(const JsonReader& config);
Model read_kimi_k2(const JsonReader& config);
Model read_gpt_oss(const JsonReader& config);
Model read_llama4(const JsonReader& config);
Model read_grok1(const JsonReader& config);

}  // namespace shardwright::hf
