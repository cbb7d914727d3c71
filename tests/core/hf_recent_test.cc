// SPDX-License-Identifier: Apache-2.0
// Families of 2025 and 2026: the parameters of small shapes are those that Transformers 5.23 counts
// for them (scripts/check_models compares published shapes).

#include "sim/core/executed_plan.h"
#include "tests/core/hf_configs.h"

namespace shardwright {
namespace {

using testing::problem_of;
using testing::read;
using testing::with;

json small(const std::string& type, const json& more) {
  return with({{"model_type", type},
               {"hidden_size", 64},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"intermediate_size", 96},
               {"vocab_size", 128},
               {"max_position_embeddings", 256}},
              more);
}

json experts(const json& more) {
  return with({{"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}}, more);
}

struct Shape {
  std::string type;
  json more;
  std::int64_t parameters, windowed;
};

std::vector<Shape> shapes() {
  return {
      {"arcee", {{"head_dim", 8}, {"hidden_act", "relu2"}}, 107072, 0},
      {"cohere2", {{"head_dim", 8}, {"sliding_window", 32}}, 123200, 3},
      {"cwm", {{"head_dim", 16}, {"sliding_window", 32}}, 172608, 3},
      {"dots1",
       experts({{"n_routed_experts", 4}, {"n_shared_experts", 2}, {"first_k_dense_replace", 1}}),
       187776, 0},
      {"ernie4_5", {{"head_dim", 16}, {"use_bias", true}}, 166464, 0},
      {"ernie4_5_moe",
       R"({"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
           "moe_layer_start_index": 1})"_json,
       179532, 0},
      {"exaone4", {{"sliding_window", 32}}, 131712, 3},
      {"glm4_moe", experts(R"({"head_dim": 16, "n_routed_experts": 4, "first_k_dense_replace": 1,
           "use_qk_norm": true, "attention_bias": true})"_json),
       211136, 0},
      {"glm4_moe_lite", experts(R"({"num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16,
           "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
           "n_routed_experts": 4, "n_shared_experts": 1,
           "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]})"_json),
       173536, 0},
      {"granitemoe", {{"num_local_experts", 4}, {"num_experts_per_tok", 2}}, 353856, 0},
      {"granitemoehybrid",
       R"({"num_local_experts": 0, "num_experts_per_tok": 0,
           "shared_intermediate_size": 80, "tie_word_embeddings": true,
           "layer_types": ["attention", "attention", "attention", "attention"]})"_json,
       111168, 0},
      {"helium", {{"head_dim", 8}}, 131648, 0},
      {"hunyuan_v1_dense", {{"head_dim", 16}}, 172736, 0},
      {"minimax_m2",
       {{"head_dim", 16}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}},
       395456,
       0},
      {"ministral", {{"head_dim", 8}, {"sliding_window", 32}}, 131648, 4},
      {"ministral3", {{"head_dim", 16}}, 172608, 0},
      {"olmo3", {{"sliding_window", 32}}, 131968, 3},
      {"olmoe", {{"num_experts", 4}, {"num_experts_per_tok", 2}}, 354176, 0},
      {"seed_oss", {{"head_dim", 16}}, 173376, 0},
      // As Transformers 5 saves what 4 calls num_experts.
      {"qwen3_moe", experts({{"head_dim", 16}, {"num_local_experts", 4}}), 198336, 0},
  };
}

TEST(HfRecent, ParametersAreThoseOfTransformers) {
  for (const Shape& shape : shapes()) {
    const Model m = read(small(shape.type, shape.more));
    EXPECT_EQ(count_parameters(m).total(m.layers), shape.parameters) << shape.type;
    EXPECT_EQ(m.windowed_layers, shape.windowed) << shape.type;
    EXPECT_TRUE(m.ignored_keys.empty()) << shape.type << ": " << m.ignored_keys.front();
    EXPECT_EQ(m.planning_only.empty(), is_trained_family(m.family)) << shape.type;
  }
}

TEST(HfRecent, OneHeadOfKeysOfGptBigcodeIsTrained) {
  json config = {{"model_type", "gpt_bigcode"}, {"n_embd", 64},  {"n_layer", 2},     {"n_head", 4},
                 {"vocab_size", 128},           {"n_inner", 96}, {"n_positions", 32}};
  const Model one = read(config);
  EXPECT_EQ(one.kv_heads, 1);
  EXPECT_EQ(one.planning_only, "");
  EXPECT_EQ(count_parameters(one).total(2), 56576);
  config["multi_query"] = false;
  const Model all = read(config);
  EXPECT_EQ(all.kv_heads, 4);
  EXPECT_THAT(all.planning_only, HasSubstr("side by side"));
  EXPECT_EQ(count_parameters(all).total(2), 69056);
}

TEST(HfRecent, StablelmOfTwoNormsIsTrained) {
  const auto why_not = [](const json& more) { return read(small("stablelm", more)).planning_only; };
  EXPECT_EQ(why_not(json::object()), "");
  EXPECT_EQ(why_not({{"use_qkv_bias", true}}), "");
  EXPECT_EQ(why_not({{"qk_layernorm", true}}), "normalises queries and keys as a whole");
  EXPECT_EQ(why_not({{"use_parallel_residual", true}}), "has one norm of parallel residuals");
}

// Each line a config that Transformers 5.23 or 5.24 saved, and the parameters of the model that it
// makes of it on its meta device (scripts/check_models --table).
TEST(HfRecent, SavedConfigsOfEveryFamilyHaveTheParametersOfTransformers) {
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/models/transformers_5.jsonl");
  std::set<std::string> families;
  for (std::string line; std::getline(file, line);) {
    const json entry = json::parse(line);
    const json& config = entry.at("config");
    const std::string type = config.at("model_type");
    const Model m = read(config);
    EXPECT_EQ(count_parameters(m).total(m.layers), entry.at("parameters")) << type;
    EXPECT_EQ(m.windowed_layers, entry.at("windowed")) << type;
    // The residual stream is kept in the parameters' type.
    EXPECT_THAT(m.ignored_keys, ::testing::Each("residual_in_fp32")) << type;
    families.insert(type);
  }
  EXPECT_GE(families.size(), 80U);
}

// As of granite_swa: of each n layers the first sees all, and of one layer that one.
TEST(HfRecent, GraniteWithExpertsHasNoWindowWhereEveryLayerSeesAll) {
  json config =
      small("granitemoe_swa",
            {{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 32}});
  EXPECT_EQ(read(config).windowed_layers, 3);
  config["sliding_window_pattern"] = 1;
  EXPECT_EQ(read(config).windowed_layers, 0);
  EXPECT_EQ(read(config).sliding_window, 0);
}

TEST(HfRecent, FilesAsTransformers5SavesThem) {
  // Angles by the kind of a layer.
  const json angles = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                       {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Model gemma = read(small("gemma3_text", {{"rope_parameters", angles}}));
  EXPECT_EQ(gemma.rope.theta, 1e6);
  EXPECT_THAT(problem_of(small("llama", {{"rope_parameters", angles}})),
              HasSubstr("one set of RoPE"));
  // A window that is not used.
  const json unused = small("qwen2_moe", R"({"sliding_window": 0,
      "use_sliding_window": false, "num_local_experts": 4, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32})"_json);
  EXPECT_EQ(read(unused).sliding_window, 0);
}

TEST(HfRecent, DynamicRopeIsPlanned) {
  const json dynamic = {
      {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}}}};
  EXPECT_TRUE(read(small("qwen3", {{"head_dim", 8}})).planning_only.empty());
  EXPECT_THAT(read(small("qwen3", dynamic)).planning_only, HasSubstr("length of sequences"));
  EXPECT_EQ(read(small("hunyuan_v1_dense", dynamic)).rope.scaling, RopeScaling::kNone);
}

TEST(HfRecent, TheTextOfAWrapperIsRead) {
  const json text = small("mistral", {{"head_dim", 16}});
  const json wrapper = {{"model_type", "mistral3"},
                        {"architectures", {"Mistral3ForConditionalGeneration"}},
                        {"vision_config", {{"hidden_size", 32}}},
                        {"text_config", text}};
  for (const char* key : {"llm_config", "language_config"}) {
    EXPECT_EQ(read({{"model_type", "internvl_chat"}, {key, text}}).hidden, 64) << key;
  }
  const Model m = read(wrapper);
  EXPECT_EQ(count_parameters(m).total(m.layers), count_parameters(read(text)).total(4));
  EXPECT_THAT(m.ignored_keys, ::testing::ElementsAre("vision_config"));
  EXPECT_THAT(m.planning_only, HasSubstr("text part"));
  EXPECT_THAT(problem_of({{"model_type", "mistral3"}, {"text_config", {{"model_type", "mamba9"}}}}),
              HasSubstr("model_type is \"mamba9\""));
}

TEST(HfRecent, LlamaByAnotherNameMayCallItselfLlama) {
  const json renamed = small("internlm3", {{"head_dim", 8}});
  EXPECT_EQ(read(with(renamed, {{"architectures", {"LlamaForCausalLM"}}})).family, "internlm3");
  EXPECT_EQ(read(with(renamed, {{"architectures", {"InternLM3ForCausalLM"}}})).family, "internlm3");
  EXPECT_THAT(problem_of(with(renamed, {{"architectures", {"Qwen2ForCausalLM"}}})),
              HasSubstr("expected InternLM3ForCausalLM"));
}

TEST(HfRecent, MimoIsQwen2WithMultiTokenPrediction) {
  const json more = {{"attention_bias", true}, {"head_dim", 8}};
  const Model m = read(small("mimo", with(more, {{"num_nextn_predict_layers", 1}})));
  const Model qwen = read(small("qwen2", {{"head_dim", 8}}));
  EXPECT_EQ(count_parameters(m).total(4), count_parameters(qwen).total(4));
  EXPECT_EQ(m.mtp_layers, 1);
}

TEST(HfRecent, ListsForLayersMustAgree) {
  const auto hunyuan = [](const json& more) {
    return with(small("hunyuan_v1_moe", R"({"head_dim": 8, "num_experts": 4,
        "moe_intermediate_size": [32, 32, 32, 32], "num_shared_expert": [1, 1, 1, 1]})"_json),
                more);
  };
  const Model m = read(hunyuan({{"moe_topk", {2, 2, 2, 2}}}));
  EXPECT_EQ(m.experts.per_token, 2);
  EXPECT_EQ(m.experts.ffn, 32);
  EXPECT_EQ(m.experts.shared_ffn, 96);
  EXPECT_THAT(problem_of(hunyuan({{"moe_topk", {2, 2, 2, 1}}})),
              HasSubstr("moe_topk[3] is 1, expected 2 as in the first layer"));
}

TEST(HfRecent, PythonsInfinityIsNoNumber) {
  const std::string text = small("llama", {{"_name_or_path", "NaN \\"}}).dump();
  const Model plain = parse_hf_config(text, "c.json", "tiny");
  const Model m =
      parse_hf_config(text.substr(0, text.size() - 1) +
                          R"(, "time_step_limit": [0.0, Infinity], "least": -Infinity})",
                      "c.json", "tiny");
  EXPECT_EQ(count_parameters(m).total(4), count_parameters(plain).total(4));
  EXPECT_THAT(refusal_of([&] {
                parse_hf_config(text.substr(0, text.size() - 1) + R"(, "rope_theta": NaN})",
                                "c.json", "x");
              }),
              HasSubstr("rope_theta is \"NaN\", expected a number"));
  EXPECT_THAT(refusal_of([&] { parse_hf_config(R"({"vocab_size": infinity})", "c.json", "x"); }),
              HasSubstr("invalid literal"));
}

TEST(HfRecent, StoredInFewerBitsIsPlanned) {
  const json modelopt = {{"quant_algo", "FP8"}, {"producer", {{"name", "modelopt"}}}};
  EXPECT_EQ(read(small("qwen3", {{"quantization_config", modelopt}})).planning_only,
            "is stored in fewer bits");
  EXPECT_THAT(problem_of(small("qwen3", {{"quantization_config", {{"quant_algo", "INT2"}}}})),
              HasSubstr("quant_algo is \"INT2\""));
  const json stored = small("qwen3", {{"quantization_config", {{"quant_method", "fp8"}}}});
  EXPECT_EQ(read(stored).planning_only, "is stored in fewer bits");
  EXPECT_THAT(problem_of(small("qwen3", {{"quantization_config", {{"quant_method", "gptq"}}}})),
              HasSubstr("quant_method is \"gptq\""));
  EXPECT_EQ(read(small("qwen3_moe", experts({{"num_experts", 4}, {"use_qk_norm", true}}))).family,
            "qwen3_moe");
}

TEST(HfRecent, FamiliesThatHaveWhatIsNotModelledAreRefusedByIt) {
  EXPECT_EQ(problem_of(small("zamba2", json::object())),
            "c.json: model_type is \"zamba2\", expected a model without blocks of attention that "
            "layers share, because that is not modelled");
  EXPECT_THAT(
      problem_of({{"model_type", "gemma3n"}, {"text_config", {{"model_type", "gemma3n_text"}}}}),
      HasSubstr("text_config.model_type is \"gemma3n_text\", expected a model without "
                "embeddings for each layer"));
  EXPECT_THAT(problem_of({{"model_type", "minimax_m3_vl"},
                          {"text_config", {{"architectures", {"MiniMaxM3SparseForCausalLM"}}}}}),
              HasSubstr("expected a model without block-sparse attention"));
  EXPECT_THAT(problem_of(small("glm_moe_dsa", json::object())),
              HasSubstr("an indexer of sparse attention"));
  EXPECT_THAT(problem_of(small("youtu", json::object())),
              HasSubstr("latent attention in a dense model"));
}

TEST(HfRecent, WhatIsNotModelledIsRefused) {
  EXPECT_THAT(problem_of(small("granitemoehybrid", {{"num_local_experts", 0},
                                                    {"shared_intermediate_size", 80},
                                                    {"mamba_n_heads", 4},
                                                    {"layer_types", {"mamba", "attention"}}})),
              HasSubstr("a type for each of the 4 layers"));
  EXPECT_THAT(problem_of(small("glm4_moe_lite", experts(R"({"num_key_value_heads": 8,
          "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
          "v_head_dim": 8, "n_routed_experts": 4, "mlp_layer_types": ["sparse", "dense"]})"_json))),
              HasSubstr("mlp_layer_types[1]"));
}

}  // namespace
}  // namespace shardwright
