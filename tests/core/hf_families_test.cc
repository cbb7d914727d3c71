// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "tests/core/hf_configs.h"

namespace shardwright {
namespace {

using testing::family;
using testing::llama_config;
using testing::problem_of;
using testing::read;
using testing::with;

TEST(HfFamilies, ListsKeysThatItIgnores) {
  EXPECT_TRUE(read(llama_config()).ignored_keys.empty());
  const Model m = read(with(llama_config(), R"({"mup_width_multiplier": 2.0,
      "vision_config": {"depth": 3}, "some_flag": false, "torch_dtype": "bfloat16",
      "bos_token_id": 1, "_comment": "x"})"_json));
  EXPECT_THAT(m.ignored_keys, ::testing::ElementsAre("mup_width_multiplier", "vision_config"));
}

TEST(HfFamilies, KnowsDropoutAndTheInitialDeviation) {
  EXPECT_EQ(read(llama_config()).dropout, "");
  EXPECT_DOUBLE_EQ(read(llama_config()).initial_deviation, 0.02);
  const Model m = read(with(llama_config(), R"({"attention_dropout": 0.5,
      "classifier_dropout": 0.3, "hidden_dropout": 0.0, "initializer_range": 0.006})"_json));
  EXPECT_EQ(m.dropout, "attention_dropout is 0.5");
  EXPECT_DOUBLE_EQ(m.initial_deviation, 0.006);
  EXPECT_TRUE(m.ignored_keys.empty());
  EXPECT_THAT(problem_of(with(llama_config(), {{"initializer_range", -1}})),
              HasSubstr("initializer_range"));
}

TEST(HfFamilies, LlamaKeys) {
  const Model m = read(llama_config());
  EXPECT_EQ(m.name, "tiny");
  EXPECT_EQ(m.family, "llama");
  EXPECT_EQ(m.layers, 2);
  EXPECT_EQ(m.hidden, 64);
  EXPECT_EQ(m.heads, 8);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.head_dim, 8);
  EXPECT_EQ(m.ffn, 128);
  EXPECT_EQ(m.vocab, 100);
  EXPECT_EQ(m.max_positions, 256);
  EXPECT_EQ(m.norm_eps, 1e-6);
  EXPECT_EQ(m.rope.theta, 500000.0);
  EXPECT_TRUE(m.gated_mlp);
  EXPECT_FALSE(m.tied_head || m.qkv_bias || m.mlp_bias || m.norm_bias || m.fused_qkv);
  EXPECT_EQ(m.sliding_window, 0);
  EXPECT_EQ(read(with(llama_config(), {{"num_key_value_heads", nullptr}})).kv_heads, 8);
  EXPECT_EQ(read(with(llama_config(), {{"head_dim", 32}})).head_dim, 32);
  const Model biased = read(with(llama_config(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.attention_out_bias && biased.mlp_bias);
}

TEST(HfFamilies, KeysThatDoNotMatterAreIgnored) {
  EXPECT_EQ(problem_of(with(llama_config(), R"({"attention_dropout": 0.1,
      "torch_dtype": "bfloat16", "dtype": "float32", "pretraining_tp": 2,
      "use_cache": true, "some_new_key": {"a": 1}})"_json)),
            "accepted");
}

TEST(HfFamilies, BothGenerationsOfRopeAreRead) {
  const json llama3 = R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 128, "rope_type": "llama3"})"_json;
  const Model old = read(with(llama_config(), {{"rope_scaling", llama3}}));
  EXPECT_EQ(old.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(old.rope.theta, 500000.0);
  EXPECT_EQ(old.rope.factor, 8.0);
  EXPECT_EQ(old.rope.original_max_positions, 128);

  json parameters = llama3;
  parameters["rope_theta"] = 500000.0;
  const Model recent =
      read(with(llama_config(), {{"rope_theta", nullptr}, {"rope_parameters", parameters}}));
  EXPECT_EQ(recent.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(recent.rope.theta, 500000.0);
  EXPECT_EQ(recent.rope.high_freq_factor, 4.0);

  // A file written for both generations is fine while they agree.
  EXPECT_EQ(
      problem_of(with(llama_config(), {{"rope_scaling", llama3}, {"rope_parameters", parameters}})),
      "accepted");
  parameters["factor"] = 4.0;
  EXPECT_EQ(
      problem_of(with(llama_config(), {{"rope_scaling", llama3}, {"rope_parameters", parameters}})),
      "c.json: rope_scaling is an object of 5 keys, expected the same as rope_parameters, or "
      "only one of the two");

  const Model linear =
      read(with(llama_config(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(linear.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.rope.factor, 2.0);
  const Model plain = read(
      with(llama_config(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  EXPECT_EQ(plain.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(plain.rope.theta, 1e6);
  EXPECT_EQ(read(with(llama_config(), {{"rope_theta", nullptr}})).rope.theta, 10000.0);
}

TEST(HfFamilies, StretchedRopeIsPlannedOnly) {
  for (const std::string type : {"yarn", "longrope", "su"}) {
    const Model m = read(with(llama_config(), {{"rope_scaling", {{"rope_type", type}}}}));
    EXPECT_EQ(m.planning_only, "stretches RoPE with yarn or longrope");
  }
  EXPECT_EQ(read(llama_config()).planning_only, "");
}

// As in Llama 4 Scout's config; the executor's table of angles needs a transition.
TEST(HfFamilies, RopeScaledWithoutATransitionIsPlannedOnly) {
  json scaling = R"({"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"})"_json;
  const Model m = read(with(llama_config(), {{"rope_scaling", scaling}}));
  EXPECT_EQ(m.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(m.planning_only, "stretches some frequencies of RoPE without a transition");
  scaling["high_freq_factor"] = 0.5;
  EXPECT_THAT(problem_of(with(llama_config(), {{"rope_scaling", scaling}})),
              HasSubstr("expected at least low_freq_factor, 1"));
}

TEST(HfFamilies, KeysOfOneFamilyAreRefusedInOthers) {
  for (const char* key : {"attention_multiplier", "logit_scale", "use_qk_norm", "qk_layernorm",
                          "query_pre_attn_scalar"}) {
    EXPECT_THAT(problem_of(with(llama_config(), {{key, 2.0}})), HasSubstr(key));
  }
  EXPECT_EQ(problem_of(with(family("granite", "GraniteForCausalLM"),
                            {{"attention_multiplier", 0.1}, {"logits_scaling", 16}})),
            "accepted");
  EXPECT_THAT(problem_of(with(family("granite", "GraniteForCausalLM"), {{"logit_scale", 2}})),
              HasSubstr("logit_scale"));
  EXPECT_THAT(problem_of(family("nemotron", "NemotronForCausalLM")),
              HasSubstr("hidden_act is \"silu\", expected one of relu2"));
}

TEST(HfFamilies, OtherRopeIsRefusedByKey) {
  for (const std::string type : {"proportional", "mrope"}) {
    for (const char* key : {"rope_type", "type"}) {
      EXPECT_EQ(
          problem_of(with(llama_config(), {{"rope_scaling", {{key, type}, {"factor", 4}}}})),
          "c.json: rope_scaling." + std::string(key) + " is \"" + type +
              "\", expected default, dynamic, linear, llama3, yarn or longrope, because others are "
              "not modelled");
    }
  }
  EXPECT_THAT(problem_of(with(llama_config(), {{"rope_parameters", {{"rope_type", "ntk"}}}})),
              HasSubstr("rope_parameters.rope_type is \"ntk\""));
  EXPECT_THAT(problem_of(with(llama_config(),
                              {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}})),
              HasSubstr("rope_parameters.full_attention"));
  EXPECT_THAT(problem_of(with(llama_config(), {{"rope_scaling", {{"rope_type", "llama3"}}}})),
              HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(problem_of(with(llama_config(), {{"rope_scaling", "llama3"}})),
              HasSubstr("rope_scaling is \"llama3\", expected an object"));
  EXPECT_THAT(problem_of(with(llama_config(), {{"rope_theta", 0}})),
              HasSubstr("rope_theta is 0, expected a number above 0"));
  EXPECT_THAT(problem_of(with(llama_config(), {{"partial_rotary_factor", 0.4}})),
              HasSubstr("RoPE turns 3 of the 8 dimensions of a head, expected an even number"));
}

TEST(HfFamilies, SlidingWindowsAreKeptWhereALayerHasOne) {
  const json mistral = family("mistral", "MistralForCausalLM");
  EXPECT_EQ(read(mistral).sliding_window, 0);
  EXPECT_EQ(read(with(mistral, {{"sliding_window", 64}})).sliding_window, 64);
  const json qwen = with(family("qwen2", "Qwen2ForCausalLM"), {{"sliding_window", 64}});
  EXPECT_EQ(read(qwen).sliding_window, 0);  // use_sliding_window is false by default
  EXPECT_EQ(
      read(with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 2}})).sliding_window, 0);
  EXPECT_EQ(
      read(with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 1}})).sliding_window,
      64);
  EXPECT_EQ(read(with(qwen, {{"use_sliding_window", true},
                             {"layer_types", {"full_attention", "full_attention"}}}))
                .sliding_window,
            0);
  EXPECT_EQ(read(with(qwen, {{"use_sliding_window", true},
                             {"layer_types", {"full_attention", "sliding_attention"}}}))
                .sliding_window,
            64);
  EXPECT_THAT(problem_of(with(qwen, {{"layer_types", {"linear_attention"}}})),
              HasSubstr("layer_types[0] is \"linear_attention\""));
  EXPECT_THAT(problem_of(with(mistral, {{"sliding_window", 0}})), HasSubstr("sliding_window is 0"));
  // The window of phi3 leaves out the current position.
  EXPECT_EQ(read(with(family("phi3", "Phi3ForCausalLM"), {{"sliding_window", 63}})).sliding_window,
            64);
  EXPECT_EQ(read(family("gemma2", "Gemma2ForCausalLM")).sliding_window, 4096);
}

TEST(HfFamilies, RelativesOfLlama) {
  const Model qwen2 = read(family("qwen2", "Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_out_bias || qwen2.mlp_bias);
  const Model qwen3 = read(family("qwen3", "Qwen3ForCausalLM"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  const Model phi3 =
      read(with(family("phi3", "Phi3ForCausalLM"), {{"partial_rotary_factor", 0.75}}));
  EXPECT_TRUE(phi3.fused_qkv && phi3.fused_gate_up);
  EXPECT_EQ(phi3.rope.rotary_fraction, 0.75);
  const json gemma_config =
      with(family("gemma", "GemmaForCausalLM"), {{"hidden_act", "gelu"}, {"head_dim", 16}});
  const Model gemma = read(gemma_config);
  EXPECT_TRUE(gemma.tied_head);
  EXPECT_EQ(gemma.embedding_scale, 8.0);
  EXPECT_EQ(gemma.activation, Activation::kGeluTanh);
  EXPECT_EQ(read(with(gemma_config, {{"hidden_activation", "gelu"}})).activation,
            Activation::kGelu);
}

TEST(HfFamilies, Gemma2) {
  const json config = with(family("gemma2", "Gemma2ForCausalLM"),
                           {{"head_dim", 16}, {"query_pre_attn_scalar", 25}});
  const Model m = read(config);
  EXPECT_EQ(m.family, "gemma2");
  EXPECT_EQ(m.norms_per_layer, 4);
  EXPECT_DOUBLE_EQ(m.attention_scale, 0.2);
  EXPECT_EQ(m.attention_softcap, 50.0);
  EXPECT_EQ(m.logit_softcap, 30.0);
  EXPECT_EQ(read(with(config, {{"query_pre_attn_scalar", 16}})).attention_scale, 0.0);
  json uncapped = config;
  uncapped["attn_logit_softcapping"] = nullptr;
  uncapped["final_logit_softcapping"] = 20.0;
  EXPECT_EQ(read(uncapped).attention_softcap, 0.0);
  EXPECT_EQ(read(uncapped).logit_softcap, 20.0);
}

TEST(HfFamilies, Gpt2) {
  const json config = {{"model_type", "gpt2"}, {"n_embd", 64},      {"n_layer", 2},
                       {"n_head", 4},          {"vocab_size", 100}, {"n_positions", 32}};
  const Model m = read(config);
  EXPECT_EQ(m.ffn, 256);
  EXPECT_EQ(m.max_positions, 32);
  EXPECT_EQ(m.position, Position::kLearned);
  EXPECT_EQ(m.activation, Activation::kGeluTanh);
  EXPECT_EQ(m.norm, Normalization::kLayerNorm);
  EXPECT_TRUE(m.norm_bias && m.qkv_bias && m.attention_out_bias && m.mlp_bias && m.tied_head);
  EXPECT_TRUE(m.fused_qkv);
  EXPECT_FALSE(m.gated_mlp);
  EXPECT_EQ(read(with(config, {{"n_inner", 96}})).ffn, 96);
  EXPECT_THAT(problem_of(with(config, {{"n_head", 5}})),
              HasSubstr("n_head is 5, expected a divisor of the hidden size 64"));
  EXPECT_EQ(
      problem_of(with(config, {{"scale_attn_by_inverse_layer_idx", true}})),
      "c.json: scale_attn_by_inverse_layer_idx is true, expected false or no such key, because "
      "this is not modelled");
  EXPECT_THAT(problem_of(with(config, {{"scale_attn_weights", false}})),
              HasSubstr("expected true"));
}

TEST(HfFamilies, GptNeox) {
  const json config = with(family("gpt_neox", "GPTNeoXForCausalLM"), R"({"hidden_act": "gelu",
          "rotary_pct": 0.5, "rotary_emb_base": 5000, "rope_theta": null,
          "num_key_value_heads": null})"_json);
  const Model m = read(config);
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_EQ(m.rope.rotary_fraction, 0.5);
  EXPECT_EQ(m.rope.theta, 5000.0);
  EXPECT_TRUE(m.parallel_residual && m.fused_qkv && m.norm_bias && m.qkv_bias && m.mlp_bias);
  EXPECT_FALSE(m.tied_head || m.gated_mlp);
  EXPECT_FALSE(read(with(config, {{"use_parallel_residual", false}})).parallel_residual);
  EXPECT_FALSE(read(with(config, {{"attention_bias", false}})).qkv_bias);
}

TEST(HfFamilies, Mpt) {
  const json config = {{"model_type", "mpt"}, {"d_model", 64},       {"n_layers", 2},
                       {"n_heads", 8},        {"vocab_size", 100},   {"max_seq_len", 32},
                       {"no_bias", false},    {"expansion_ratio", 4}};
  EXPECT_EQ(read(config).position, Position::kAlibi);
  const json learned = with(config, {{"attn_config", {{"alibi", false}}}});
  const Model m = read(learned);
  EXPECT_EQ(m.position, Position::kLearned);
  EXPECT_EQ(m.ffn, 256);
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_TRUE(m.norm_bias && m.qkv_bias && m.attention_out_bias && m.mlp_bias && m.tied_head);
  EXPECT_FALSE(m.gated_mlp);
  EXPECT_FALSE(read(with(config, {{"no_bias", true}})).norm_bias);
  const Model grouped = read(with(
      config,
      {{"attn_config",
        {{"attn_type", "grouped_query_attention"}, {"kv_n_heads", 2}, {"softmax_scale", 0.5}}}}));
  EXPECT_EQ(grouped.kv_heads, 2);
  EXPECT_EQ(grouped.attention_scale, 0.5);
  const Model glu = read(with(config, {{"ffn_config", {{"ffn_type", "mptglu"}}}}));
  EXPECT_TRUE(glu.gated_mlp);
  EXPECT_THAT(problem_of(with(learned, {{"attn_config", {{"clip_qkv", 6}}}})),
              HasSubstr("attn_config.clip_qkv is 6"));
  EXPECT_THAT(problem_of(with(learned, {{"attn_config", {{"qk_ln", true}}}})),
              HasSubstr("attn_config.qk_ln is true"));
  EXPECT_THAT(problem_of(with(learned, {{"learned_pos_emb", false}})),
              HasSubstr("learned_pos_emb is false, expected true, or alibi in attn_config"));
  EXPECT_THAT(problem_of(with(config, {{"expansion_ratio", 1e9}})),
              HasSubstr("expansion_ratio is 1000000000.0"));
}

TEST(HfFamilies, WhatChangesTheArithmeticIsRefusedByKey) {
  EXPECT_EQ(problem_of(with(llama_config(), {{"num_local_experts", 8}})),
            "c.json: num_local_experts is 8, expected 0 or no such key, because llama models with "
            "experts are not modelled");
  EXPECT_THAT(problem_of(with(family("qwen3", "Qwen3ForCausalLM"), {{"num_experts", 128}})),
              HasSubstr("num_experts is 128"));
  const json refused = R"({"qk_layernorm": true, "residual_multiplier": 0.22,
      "attn_logit_softcapping": 50.0, "kv_lora_rank": 512, "is_causal": false})"_json;
  for (const auto& [key, value] : refused.items()) {
    EXPECT_THAT(problem_of(with(llama_config(), {{key, value}})),
                HasSubstr("c.json: " + key + " is "));
  }
  EXPECT_EQ(
      problem_of(with(llama_config(),
                      {{"residual_multiplier", 1.0}, {"qk_layernorm", false}, {"num_experts", 0}})),
      "accepted");
  EXPECT_EQ(
      problem_of(with(llama_config(), {{"hidden_act", "quick_gelu"}})),
      "c.json: hidden_act is \"quick_gelu\", expected one of silu, gelu, gelu_new, gelu_fast, "
      "gelu_pytorch_tanh, relu");
  EXPECT_THAT(problem_of(with(family("mistral", "MistralForCausalLM"), {{"attention_bias", true}})),
              HasSubstr("attention_bias is true"));
}

TEST(HfFamilies, UnknownArchitecturesNameTheMostSimilar) {
  using ::testing::MatchesRegex;
  EXPECT_THAT(
      problem_of(family("lama", "LamaForCausalLM")),
      MatchesRegex("c.json: model_type is \"lama\", expected one of [0-9]+ known families such as "
                   "llama, .*"));
  EXPECT_THAT(
      problem_of(with(llama_config(), {{"model_type", nullptr}, {"architectures", {"Qwen2"}}})),
      MatchesRegex("c.json: architectures.0. is \"Qwen2\", expected the language model of one of "
                   "[0-9]+ known families such as qwen2, .*"));
  EXPECT_THAT(
      problem_of(with(llama_config(), {{"model_type", nullptr}, {"architectures", nullptr}})),
      MatchesRegex("c.json: model_type is missing, expected one of [0-9]+ known families such as "
                   "llama, .*"));
  EXPECT_EQ(
      problem_of(with(llama_config(), {{"architectures", {"LlamaForSequenceClassification"}}})),
      "c.json: architectures[0] is \"LlamaForSequenceClassification\", expected LlamaForCausalLM");
  EXPECT_EQ(read(with(llama_config(), {{"model_type", nullptr}})).family, "llama");
  EXPECT_EQ(problem_of(with(llama_config(), {{"architectures", nullptr}})), "accepted");
}

TEST(HfFamilies, BadSizesNameFileKeyAndValue) {
  const auto problem = [](const json& changes) {
    return problem_of(with(llama_config(), changes));
  };
  EXPECT_EQ(problem({{"num_attention_heads", 7}, {"num_key_value_heads", 7}}),
            "c.json: num_attention_heads is 7, expected a divisor of the hidden size 64");
  EXPECT_EQ(problem({{"num_key_value_heads", 3}}),
            "c.json: num_key_value_heads is 3, expected a divisor of the 8 num_attention_heads");
  EXPECT_EQ(problem({{"num_hidden_layers", 0}}),
            "c.json: num_hidden_layers is 0, expected an integer from 1 to 16384");
  EXPECT_EQ(problem({{"hidden_size", -64}}),
            "c.json: hidden_size is -64, expected an integer from 1 to 262144");
  EXPECT_EQ(problem({{"vocab_size", 1e30}}),
            "c.json: vocab_size is 1e+30, expected an integer from 1 to 16777216");
  EXPECT_EQ(problem({{"intermediate_size", 12.5}}),
            "c.json: intermediate_size is 12.5, expected an integer from 1 to 2097152");
  EXPECT_EQ(problem({{"intermediate_size", "128"}}),
            "c.json: intermediate_size is \"128\", expected an integer from 1 to 2097152");
  EXPECT_EQ(problem({{"vocab_size", nullptr}}),
            "c.json: vocab_size is missing, but it is required");
  EXPECT_EQ(problem({{"tie_word_embeddings", 1}}),
            "c.json: tie_word_embeddings is 1, expected true or false");
  EXPECT_EQ(problem({{"rms_norm_eps", 0}}), "c.json: rms_norm_eps is 0, expected a number above 0");
  EXPECT_THAT(problem(R"({"hidden_size": 262144, "head_dim": 128,
      "num_hidden_layers": 16384, "intermediate_size": 2097152})"_json),
              HasSubstr("parameters, expected at most 100000000000000"));
}

// Experts and latent attention.

json mixtral_config() {
  return with(family("mixtral", "MixtralForCausalLM"),
              {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
}

json deepseek_config() {
  return with(family("deepseek_v3", "DeepseekV3ForCausalLM"), R"({"num_key_value_heads": 8,
      "num_hidden_layers": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
      "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 16,
      "num_experts_per_tok": 4, "moe_intermediate_size": 32, "n_shared_experts": 2,
      "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
      "num_nextn_predict_layers": 1})"_json);
}

TEST(HfExperts, MixtralHasThemInEveryLayer) {
  const Model m = read(mixtral_config());
  EXPECT_EQ(m.experts, (Experts{.count = 8, .per_token = 2, .ffn = 128}));
  EXPECT_EQ(m.expert_layers(), 2);
  EXPECT_EQ(m.planning_only, "has experts");
  EXPECT_EQ(problem_of(with(mixtral_config(), {{"num_experts_per_tok", 9}})),
            "c.json: num_experts_per_tok is 9, expected at most the 8 of num_local_experts");
  EXPECT_THAT(problem_of(with(mixtral_config(), {{"num_local_experts", 0}})),
              HasSubstr("num_local_experts is 0"));
}

TEST(HfExperts, DeepseekHasLatentAttentionAndLeadingDenseLayers) {
  const Model m = read(deepseek_config());
  EXPECT_EQ(m.latent, (LatentAttention{16, 24, 8, 4, 6}));
  EXPECT_EQ(m.head_dim, 12);
  EXPECT_EQ(m.attention_out_dim(), 8 * 6);
  EXPECT_EQ(m.experts.shared_ffn, 64);
  EXPECT_EQ(m.experts.groups, 4);
  EXPECT_EQ(m.experts.groups_per_token, 2);
  EXPECT_TRUE(m.experts.router_bias);
  EXPECT_EQ(m.mtp_layers, 1);
  EXPECT_EQ(m.expert_layers(), 3);
  EXPECT_FALSE(m.has_experts(0));
  EXPECT_TRUE(m.has_experts(1));
  EXPECT_THAT(problem_of(with(deepseek_config(), {{"first_k_dense_replace", 4}})),
              HasSubstr("first_k_dense_replace is 4, expected less than the 4 layers"));
  EXPECT_THAT(problem_of(with(deepseek_config(), {{"num_key_value_heads", 4}})),
              HasSubstr("num_key_value_heads is 4, expected 8"));
  EXPECT_THAT(problem_of(with(deepseek_config(), {{"moe_layer_freq", 2}})),
              HasSubstr("moe_layer_freq is 2"));
  EXPECT_THAT(problem_of(with(deepseek_config(), {{"n_group", 3}})), HasSubstr("3 groups"));
  // As the Hub's file says that its weights are stored.
  EXPECT_EQ(problem_of(with(deepseek_config(),
                            {{"quantization_config", {{"quant_method", "fp8"}, {"fmt", "e4m3"}}}})),
            "accepted");
  EXPECT_THAT(
      problem_of(with(deepseek_config(), {{"quantization_config", {{"quant_method", "gptq"}}}})),
      HasSubstr("quantization_config.quant_method is \"gptq\""));
}

TEST(HfExperts, OtherFamiliesSayWhichLayersHaveThem) {
  const json qwen = with(family("qwen3_moe", "Qwen3MoeForCausalLM"), R"({"num_experts": 16,
          "num_experts_per_tok": 4, "num_hidden_layers": 6, "moe_intermediate_size": 32})"_json);
  EXPECT_EQ(read(qwen).expert_layers(), 6);
  EXPECT_EQ(read(with(qwen, {{"decoder_sparse_step", 2}})).expert_layers(), 3);
  EXPECT_FALSE(read(with(qwen, {{"decoder_sparse_step", 2}})).has_experts(0));
  EXPECT_EQ(read(with(qwen, {{"mlp_only_layers", {1, 0}}})).experts.first_layer, 2);
  EXPECT_THAT(problem_of(with(qwen, {{"mlp_only_layers", {3}}})), HasSubstr("mlp_only_layers is"));
  const json llama4 = with(family("llama4_text", "Llama4ForCausalLM"), R"({"num_local_experts": 16,
          "num_experts_per_tok": 1, "num_hidden_layers": 8, "head_dim": 16,
          "intermediate_size_mlp": 256, "interleave_moe_layer_step": 2,
          "attention_chunk_size": 64})"_json);
  const Model m = read(llama4);
  EXPECT_EQ(m.expert_layers(), 4);
  EXPECT_EQ(m.ffn, 256);
  EXPECT_EQ(m.experts.ffn, 128);
  EXPECT_EQ(m.experts.shared_ffn, 128);
  EXPECT_TRUE(m.chunked_attention);
  EXPECT_EQ(m.windowed_layers, 6);
  EXPECT_EQ(read(with(llama4, {{"no_rope_layers", {1, 0, 1, 0, 1, 0, 1, 0}}})).windowed_layers, 4);
}

}  // namespace
}  // namespace shardwright
