// SPDX-License-Identifier: Apache-2.0
// What the keys of a Hugging Face config.json mean, family by family.
//
// Families: llama, mistral, qwen2, qwen3, phi3, gemma, gemma2, gpt2, gpt_neox, mpt, with the
// defaults of the Transformers configuration classes for keys that are absent. RoPE is read in both
// forms: rope_theta with rope_scaling, and the rope_parameters of Transformers 5.
//
// A key that changes the arithmetic and is not modelled is an error that names it: experts, RoPE
// types other than default, linear and llama3, unknown activations, query/key norms outside qwen3,
// quantized weights and the like. A sliding window is kept in the Model and refused where a
// sequence exceeds it (check_plan). Keys that do not matter for the cost of training are ignored;
// dropout is one of them: steps are modelled without it, as large models are trained.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright {

/// The model of a config, without its name. Throws Error naming file, key and value. Sizes are
/// within model_limits and divide; check_model has still to bound their product.
Model model_from_config(const JsonReader& config);

}  // namespace shardwright
