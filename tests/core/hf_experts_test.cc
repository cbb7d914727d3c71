// SPDX-License-Identifier: Apache-2.0
// Configurations of models with experts and latent attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sim/core/hf/families.h"
#include "tests/core/hf_configs.h"

namespace shardwright {
namespace {

using nlohmann::json;
using testing::family;
using ::testing::HasSubstr;
using testing::problem_of;
using testing::read;
using testing::with;

json mixtral_config() {
  return with(family("mixtral", "MixtralForCausalLM"),
              {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
}

json deepseek_config() {
  return with(family("deepseek_v3", "DeepseekV3ForCausalLM"), {{"num_key_value_heads", 8},
                                                               {"num_hidden_layers", 4},
                                                               {"q_lora_rank", 24},
                                                               {"kv_lora_rank", 16},
                                                               {"qk_nope_head_dim", 8},
                                                               {"qk_rope_head_dim", 4},
                                                               {"v_head_dim", 6},
                                                               {"n_routed_experts", 16},
                                                               {"num_experts_per_tok", 4},
                                                               {"moe_intermediate_size", 32},
                                                               {"n_shared_experts", 2},
                                                               {"first_k_dense_replace", 1},
                                                               {"n_group", 4},
                                                               {"topk_group", 2},
                                                               {"num_nextn_predict_layers", 1}});
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
  const json qwen =
      with(family("qwen3_moe", "Qwen3MoeForCausalLM"), {{"num_experts", 16},
                                                        {"num_experts_per_tok", 4},
                                                        {"num_hidden_layers", 6},
                                                        {"moe_intermediate_size", 32}});
  EXPECT_EQ(read(qwen).expert_layers(), 6);
  EXPECT_EQ(read(with(qwen, {{"decoder_sparse_step", 2}})).expert_layers(), 3);
  EXPECT_FALSE(read(with(qwen, {{"decoder_sparse_step", 2}})).has_experts(0));
  EXPECT_EQ(read(with(qwen, {{"mlp_only_layers", {1, 0}}})).experts.first_layer, 2);
  EXPECT_THAT(problem_of(with(qwen, {{"mlp_only_layers", {3}}})), HasSubstr("mlp_only_layers is"));
  const json llama4 =
      with(family("llama4_text", "Llama4ForCausalLM"), {{"num_local_experts", 16},
                                                        {"num_experts_per_tok", 1},
                                                        {"num_hidden_layers", 8},
                                                        {"head_dim", 16},
                                                        {"intermediate_size_mlp", 256},
                                                        {"interleave_moe_layer_step", 2},
                                                        {"attention_chunk_size", 64}});
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
