// SPDX-License-Identifier: Apache-2.0
// What the keys of a Hugging Face config.json mean, family by family.
//
// Families that are planned and run: llama, mistral, qwen2, qwen3 (hf_llama.h). Planned only: gpt2,
// gpt_neox and mpt (hf_gpt.h), other dense ones (hf_planned.h), mixtures of experts (hf_experts.h).
// Keys that are absent have the defaults of the Transformers configuration classes. RoPE is read in
// both forms: rope_theta with rope_scaling, and the rope_parameters of Transformers 5.
//
// A key that changes the arithmetic and is not modelled is an error that names it: experts of a
// dense family, unknown RoPE types and activations, query/key norms where the family has none and
// the like. Keys that do not matter for the cost of training are ignored;
// dropout is one of them: steps are modelled without it, as large models are trained.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright {

/// The model of a config, without its name. Throws Error naming file, key and value. Sizes are
/// within model_limits and divide; check_model has still to bound their product.
Model model_from_config(const JsonReader& config);

}  // namespace shardwright
