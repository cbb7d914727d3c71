// SPDX-License-Identifier: Apache-2.0
// What the keys of a Hugging Face config.json mean, family by family.
//
// Families that are planned and run are those of exec/family.h. Planned only are the others.
// Keys that are absent have the defaults of the Transformers configuration classes. RoPE is read in
// both forms: rope_theta with rope_scaling, and the rope_parameters of Transformers 5.
//
// A key that changes the arithmetic and is not modelled is an error that names it: experts of a
// dense family, unknown RoPE types and activations, query/key norms where the family has none and
// the like. Keys that do not matter for the cost of training are ignored;
// dropout is one of them: steps are modelled without it, as large models are trained.
#pragma once

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright {

/// The model of a config, without its name. Throws Error naming file, key and value. Sizes are
/// within model_limits and divide; check_model has still to bound their product.
Model model_from_config(const JsonReader& config);

}  // namespace shardwright

/// One reader for each family, by the table of families.cc.
namespace shardwright::hf {

// Llama and its relatives (dense_families.cc).
Model read_llama(const JsonReader& config);
Model read_mistral(const JsonReader& config);
Model read_qwen2(const JsonReader& config);
Model read_qwen3(const JsonReader& config);
Model read_phi3(const JsonReader& config);
Model read_gemma(const JsonReader& config);
Model read_gemma2(const JsonReader& config);

// With LayerNorm and a plain MLP (dense_families.cc). The keys of mpt are those of LLM Foundry,
// which trains models that Transformers itself cannot: learned positions, biases.
Model read_gpt2(const JsonReader& config);
Model read_gpt_bigcode(const JsonReader& config);
Model read_gpt_neox(const JsonReader& config);
Model read_mpt(const JsonReader& config);

// Mostly planned only, for details that cost nothing (multipliers of scores and residuals, layers
// without RoPE, squared ReLU); Model::planning_only names the detail (dense_families.cc).
Model read_cohere(const JsonReader& config);
Model read_falcon(const JsonReader& config);
Model read_gemma3(const JsonReader& config);
Model read_glm(const JsonReader& config);
Model read_glm4(const JsonReader& config);
Model read_granite(const JsonReader& config);
Model read_nemotron(const JsonReader& config);
Model read_olmo2(const JsonReader& config);
Model read_smollm3(const JsonReader& config);
Model read_stablelm(const JsonReader& config);
Model read_starcoder2(const JsonReader& config);

// Of 2025 and 2026 (dense_families.cc).
Model read_arcee(const JsonReader& config);
Model read_cohere2(const JsonReader& config);
Model read_cwm(const JsonReader& config);
Model read_ernie4_5(const JsonReader& config);
Model read_exaone4(const JsonReader& config);
Model read_granite_swa(const JsonReader& config);
Model read_helium(const JsonReader& config);
Model read_hunyuan_v1_dense(const JsonReader& config);
Model read_hyperclovax(const JsonReader& config);
Model read_internlm3(const JsonReader& config);
Model read_iquestcoder(const JsonReader& config);
Model read_jais2(const JsonReader& config);
Model read_mimo(const JsonReader& config);
Model read_ministral(const JsonReader& config);
Model read_ministral3(const JsonReader& config);
Model read_olmo3(const JsonReader& config);
Model read_qwen2_vl_text(const JsonReader& config);
Model read_qwen3_vl_text(const JsonReader& config);
Model read_seed_oss(const JsonReader& config);
Model read_vaultgemma(const JsonReader& config);

// With Mamba or Mamba-2 in some or all layers (recurrent_families.cc).
Model read_bamba(const JsonReader& config);
Model read_falcon_h1(const JsonReader& config);
Model read_falcon_mamba(const JsonReader& config);
Model read_granite4(const JsonReader& config);
Model read_jamba(const JsonReader& config);
Model read_mamba(const JsonReader& config);
Model read_mamba2(const JsonReader& config);
Model read_nemotron_h(const JsonReader& config);

// With delta rules, lightning attention or short convolutions in some layers (linear.cc).
Model read_bailing_hybrid(const JsonReader& config);
Model read_bailing_moe_linear(const JsonReader& config);
Model read_kimi_linear(const JsonReader& config);
Model read_lfm2(const JsonReader& config);
Model read_lfm2_moe(const JsonReader& config);
Model read_minimax(const JsonReader& config);
Model read_minimax_text_01(const JsonReader& config);
Model read_olmo_hybrid(const JsonReader& config);
Model read_qwen3_5_moe_text(const JsonReader& config);
Model read_qwen3_5_text(const JsonReader& config);
Model read_qwen3_next(const JsonReader& config);

// Whose full and windowed layers have other heads (dense_families.cc), or whose attention is gated
// (dense_families.cc).
Model read_afmoe(const JsonReader& config);
Model read_gemma4_text(const JsonReader& config);
Model read_laguna(const JsonReader& config);

// With experts (expert_families.cc).
Model read_cohere2_moe(const JsonReader& config);
Model read_dots1(const JsonReader& config);
Model read_ernie4_5_moe(const JsonReader& config);
Model read_exaone_moe(const JsonReader& config);
Model read_flex_olmo(const JsonReader& config);
Model read_flint(const JsonReader& config);
Model read_glm4_moe(const JsonReader& config);
Model read_granitemoe(const JsonReader& config);
Model read_granitemoe_swa(const JsonReader& config);
Model read_granitemoeshared(const JsonReader& config);
Model read_hunyuan_v1_moe(const JsonReader& config);
Model read_hy_v3(const JsonReader& config);
Model read_kolibri1(const JsonReader& config);
Model read_mellum(const JsonReader& config);
Model read_minimax_m2(const JsonReader& config);
Model read_olmoe(const JsonReader& config);
Model read_qwen3_vl_moe_text(const JsonReader& config);
Model read_solar_open(const JsonReader& config);

// With latent attention (expert_families.cc).
Model read_deepseek_v2(const JsonReader& config);
Model read_deepseek_v3(const JsonReader& config);
Model read_glm4_moe_lite(const JsonReader& config);
Model read_kimi_k2(const JsonReader& config);
Model read_mistral4(const JsonReader& config);

// MoE models (expert_families.cc), planned only: no kernel of the executor routes tokens.
Model read_mixtral(const JsonReader& config);
Model read_qwen2_moe(const JsonReader& config);
Model read_qwen3_moe(const JsonReader& config);
Model read_gpt_oss(const JsonReader& config);
Model read_llama4(const JsonReader& config);
Model read_grok1(const JsonReader& config);

}  // namespace shardwright::hf
