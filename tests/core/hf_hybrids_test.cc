// SPDX-License-Identifier: Apache-2.0
// Models with recurrences in place of attention or beside it, by the key values of their published
// files: parameters are those of Transformers 5.24's own modules for these values, built on its
// meta device, or counted by hand from its classes, matrix by matrix (HfRecurrent), as is what a
// token meets.

#include <algorithm>

#include "sim/core/local_shape.h"
#include "tests/core/hf_configs.h"

namespace shardwright {
namespace {

using testing::problem_of;
using testing::read;
using testing::shipped;
using testing::with;

json layers_of(std::int64_t count, const std::vector<int>& attending, const char* other) {
  json types = json::array();
  for (int layer = 0; layer < count; ++layer) {
    const bool attends = std::find(attending.begin(), attending.end(), layer) != attending.end();
    types.push_back(attends ? "full_attention" : other);
  }
  return types;
}

json qwen3_5(const std::string& type, const json& more) {
  json text = R"({"vocab_size": 248320, "head_dim": 256, "attn_output_gate": true,
      "full_attention_interval": 4, "mtp_num_hidden_layers": 1, "linear_num_key_heads": 16,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}})"_json;
  text["model_type"] = type + "_text";
  return {{"model_type", type},
          {"architectures",
           {type == "qwen3_5" ? "Qwen3_5ForConditionalGeneration"
                              : "Qwen3_5MoeForConditionalGeneration"}},
          {"tie_word_embeddings", false},
          {"vision_config", {{"depth", 27}, {"hidden_size", 1152}}},
          {"text_config", with(text, more)}};
}

json kimi_linear(const json& more = json::object()) {
  return with(shipped("kimi-linear-48b-a3b"), more);
}

json falcon_h1(const json& more = json::object()) {
  return with(R"({"model_type": "falcon_h1", "hidden_size": 5120,
      "intermediate_size": 21504, "num_hidden_layers": 72, "num_attention_heads": 20,
      "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120, "mamba_d_ssm": 4096,
      "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_n_groups": 2, "mamba_d_state": 256,
      "mamba_rms_norm": false, "embedding_multiplier": 5.656854249492381,
      "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.35]})"_json,
              more);
}

json jamba(const json& more = json::object()) {
  return with(R"({"model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2,
      "mamba_d_state": 16, "mamba_dt_rank": 256, "attn_layer_period": 8,
      "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1})"_json,
              more);
}

json nemotron3(const json& more) {
  return with(R"({"model_type": "nemotron_h", "mlp_hidden_act": "relu2",
      "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
      "vocab_size": 131072, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
      "chunk_size": 128, "n_shared_experts": 1, "intermediate_size": 2688})"_json,
              more);
}

json nano() {
  return nemotron3(
      R"({"hidden_size": 2688, "num_hidden_layers": 52,
          "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
          "mamba_num_heads": 64, "n_routed_experts": 128, "num_experts_per_tok": 6,
          "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712})"_json);
}

json super() {
  json config = R"({"hidden_size": 4096, "num_hidden_layers": 88,
      "mtp_hybrid_override_pattern": "*E", "num_nextn_predict_layers": 1, "mamba_num_heads": 128,
      "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_latent_size": 1024,
      "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376})"_json;
  config["hybrid_override_pattern"] =
      std::string(40, 'M') + std::string(40, 'E') + std::string(8, '*');
  return nemotron3(config);
}

json lfm2(const json& more = json::object()) {
  return with(R"({"model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288,
      "block_multiple_of": 256, "block_auto_adjust_ff_dim": true, "num_hidden_layers": 16,
      "full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_attention_heads": 32,
      "num_key_value_heads": 8, "conv_L_cache": 3, "conv_bias": false,
      "tie_embedding": true, "vocab_size": 65536})"_json,
              more);
}

json lfm2_moe() {
  json config = R"({"model_type": "lfm2_moe", "hidden_size": 2048, "intermediate_size": 7168,
      "moe_intermediate_size": 1792, "num_hidden_layers": 24, "num_dense_layers": 2,
      "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 32,
      "num_experts_per_tok": 4, "vocab_size": 65536})"_json;
  config["layer_types"] = layers_of(24, {2, 6, 10, 14, 18, 21}, "conv");
  return config;
}

json gemma4(const json& more) {
  const json text = R"({"model_type": "gemma4_text", "vocab_size": 262144, "head_dim": 256,
      "global_head_dim": 512, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
      "num_kv_shared_layers": 0, "sliding_window": 1024, "use_bidirectional_attention": "vision",
      "final_logit_softcapping": 30.0, "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                           "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}})"_json;
  return {{"model_type", "gemma4"}, {"text_config", with(text, more)}};
}

json gemma4_31b() {
  return gemma4(R"({"hidden_size": 5376, "intermediate_size": 21504,
      "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
      "num_global_key_value_heads": 4})"_json);
}

json gemma4_26b() {
  return gemma4(R"({"hidden_size": 2816, "intermediate_size": 2112,
      "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
      "num_global_key_value_heads": 2, "enable_moe_block": true, "num_experts": 128,
      "top_k_experts": 8, "moe_intermediate_size": 704})"_json);
}

json olmo_hybrid() {
  return {{"model_type", "olmo_hybrid"}, {"hidden_size", 3840},       {"intermediate_size", 11008},
          {"num_hidden_layers", 32},     {"num_attention_heads", 30}, {"vocab_size", 100352}};
}

json mamba2(const json& more = json::object()) {
  return with(R"({"model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64,
      "num_heads": 80, "head_dim": 64, "n_groups": 1, "state_size": 128,
      "vocab_size": 50288, "tie_word_embeddings": true})"_json,
              more);
}

json bamba(const json& more = json::object()) {
  return with(R"({"model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "vocab_size": 128256, "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128,
      "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 128})"_json,
              more);
}

json granite_tiny() {
  json types = json::array();
  for (int layer = 0; layer < 40; ++layer) types.push_back(layer % 10 == 5 ? "attention" : "mamba");
  json config = R"({"model_type": "granitemoehybrid", "hidden_size": 1536,
      "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
      "num_local_experts": 64, "num_experts_per_tok": 6, "intermediate_size": 512,
      "shared_intermediate_size": 1024, "vocab_size": 100352, "mamba_n_heads": 48,
      "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
      "tie_word_embeddings": true})"_json;
  config["layer_types"] = types;
  return config;
}

json nemotron_h(const json& more = json::object()) {
  return with(R"({"model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52,
      "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
      "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
      "intermediate_size": 21504, "mlp_hidden_act": "relu2", "vocab_size": 131072,
      "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128})"_json,
              more);
}

json qwen3_next(const json& more = json::object()) {
  return with(R"({"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "intermediate_size": 5120, "moe_intermediate_size": 512,
      "shared_expert_intermediate_size": 512, "num_experts": 512,
      "num_experts_per_tok": 10, "vocab_size": 151936})"_json,
              more);
}

struct CountedByModules {
  json config;
  std::int64_t parameters;
};

TEST(HfHybrids, ParametersAreThoseOfTransformersModules) {
  const std::vector<CountedByModules> all = {
      {qwen3_5("qwen3_5", R"({"hidden_size": 5120, "intermediate_size": 17408,
          "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
          "linear_num_value_heads": 48})"_json),
       26'895'998'464},
      {qwen3_5("qwen3_5_moe", R"({"hidden_size": 2048, "num_hidden_layers": 40,
          "num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 256,
          "num_experts_per_tok": 8, "moe_intermediate_size": 512,
          "shared_expert_intermediate_size": 512, "linear_num_value_heads": 32})"_json),
       34'660'610'688},
      {olmo_hybrid(), 7'430'870'688},
      {kimi_linear(), 49'122'675'072},
      {falcon_h1(), 33'642'221'312},
      {falcon_h1(R"({"hidden_size": 1024, "num_hidden_layers": 36,
          "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
          "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
          "mamba_n_groups": 1, "mamba_d_state": 128, "intermediate_size": 2048,
          "vocab_size": 32784})"_json),
       521'411'104},
      {jamba(), 51'570'323'328},
      {nano(), 31'577'937'344},
      {super(), 120'668'687'360},
      {shipped("minimax-text-01"), 456'089'655'296},
      {lfm2(), 1'170'340'608},
      {lfm2_moe(), 8'339'929'856},
      {gemma4_31b(), 30'697'345'280},
      {gemma4_26b(), 25'233'141'760},
  };
  for (const CountedByModules& one : all) {
    const Model m = read(one.config);
    EXPECT_EQ(count_parameters(m).total(m.layers), one.parameters) << m.family;
    EXPECT_FALSE(m.planning_only.empty()) << m.family;
  }
}

// As their names say: A3B, A12B, A1B, A4B; Jamba says 12 B, MiniMax 45.9 B beside two tables.
TEST(HfHybrids, ATokenMeetsWhatNamesSay) {
  const auto active = [](const json& config) {
    const Model m = read(config);
    return static_cast<double>(count_parameters(m).active(m.layers)) / 1e9;
  };
  EXPECT_NEAR(active(kimi_linear()), 3.0, 0.5);
  EXPECT_NEAR(active(nano()), 3.6, 0.1);
  EXPECT_NEAR(active(super()), 12.7, 0.3);
  EXPECT_NEAR(active(lfm2_moe()), 1.5, 0.1);
  EXPECT_NEAR(active(gemma4_26b()), 3.8, 0.1);
  EXPECT_NEAR(active(jamba()), 12.0, 0.2);
  EXPECT_NEAR(active(shipped("minimax-text-01")), 45.9 + 2.46, 0.1);
}

std::int64_t count(const Model& m, LayerKind kind) {
  return std::count(m.kinds.begin(), m.kinds.end(), kind);
}

TEST(HfHybrids, LayersAreOfTheKindsThatFilesSay) {
  const Model kimi = read(kimi_linear());
  EXPECT_EQ(kimi.kind(0), (LayerKind{Mixer::kRecurrence, Channels::kMlp}));
  EXPECT_EQ(kimi.kind(3), (LayerKind{Mixer::kAttention, Channels::kExperts}));
  EXPECT_EQ(count(kimi, {Mixer::kAttention, Channels::kExperts}), 7);
  const Model jambas = read(jamba());
  EXPECT_EQ(count(jambas, {Mixer::kAttention, Channels::kMlp}), 4);
  EXPECT_EQ(count(jambas, {Mixer::kRecurrence, Channels::kExperts}), 16);
  const Model falcon = read(falcon_h1());
  EXPECT_EQ(count(falcon, {Mixer::kParallel, Channels::kMlp}), 72);
  const Model nemotron = read(nano());
  EXPECT_EQ(count(nemotron, {Mixer::kNone, Channels::kExperts}), 23);
  EXPECT_EQ(nemotron.expert_layers(), 23);
  const Model gemma = read(gemma4_31b());
  EXPECT_EQ(gemma.windowed_layers, 50);
  EXPECT_EQ(count(gemma, {Mixer::kAttention, Channels::kMlp, 2}), 10);
  EXPECT_EQ(model_of_layer(gemma, gemma.kind(5)).head_dim, 512);
  EXPECT_EQ(model_of_layer(gemma, gemma.kind(4)).kv_heads, 16);
  const Model lfm = read(lfm2());
  EXPECT_EQ(lfm.ffn, 8192);  // 2/3 of 12,288
  EXPECT_EQ(count(lfm, {Mixer::kRecurrence, Channels::kMlp}), 10);
}

// Of attention in full layers 2 * 512 * 32 * length; in windowed ones of 256 the window's share.
TEST(HfHybrids, FlopsOfWindowsAndHeadsAreThoseOfEachLayer) {
  const Model m = read(gemma4_31b());
  const double length = 4096, window = 1024;
  const double share = window * (2 * length - window) / (length * length);
  EXPECT_DOUBLE_EQ(forward_flops_per_token(m, 4096).attention,
                   10 * 2 * 32 * 512 * length + 50 * 2 * 32 * 256 * length * share);
  const Model lfm = read(lfm2());
  EXPECT_DOUBLE_EQ(forward_flops_per_token(lfm, 4096).attention,
                   6 * 2 * 2048 * 4096.0 + 10 * 2 * 2048 * 3.0);
  const Model jambas = read(jamba());
  EXPECT_DOUBLE_EQ(forward_flops_per_token(jambas, 4096).attention,
                   4 * 2 * 4096 * 4096.0 + 28 * (9 * 8192 * 16.0 + 2 * 8192 * 4.0));
}

// With one product for keys and values, and fewer key heads than ranks, neighbours share them.
TEST(HfHybrids, RanksShareTheKeyHeadsOfTheirLayer) {
  const Model m = read(gemma4_31b());
  Parallelism p;
  p.tp = 8;
  for (const LayerKind kind : kinds_of(m)) {
    const Model of_layer = model_of_layer(m, kind);
    for (const WeightShape& weight : weights_of(m, kind)) {
      if (weight.weight == Weight::kValue) {
        EXPECT_FALSE(of_layer.values_are_keys);
      }
      if (weight.weight != Weight::kKey) continue;
      const std::int64_t parts = std::min<std::int64_t>(8, of_layer.kv_heads);
      EXPECT_EQ(slices_of(weight, p).elements(weight), weight.elements() / parts);
    }
  }
}

// A low rank for decays and gates, or their own rows of the product in.
TEST(HfHybrids, KimiDeltaHasALowRankOrNone) {
  const Recurrence low = read(kimi_linear()).recurrence;
  EXPECT_EQ(low.product_width(), 3 * 4096 + 32);
  EXPECT_EQ(low.latent_width(), 2 * 128);
  EXPECT_EQ(low.up_width(), 2 * 4096);
  json full = kimi_linear();
  full["linear_attn_config"]["use_full_rank_gate"] = true;
  const Recurrence high = read(full).recurrence;
  EXPECT_EQ(high.product_width(), 5 * 4096 + 32);
  EXPECT_EQ(high.latent_width() + high.up_width(), 0);
}

TEST(HfHybrids, WhatDoesNotFitTogetherIsRefused) {
  json twice = kimi_linear(), missing = kimi_linear();
  twice["linear_attn_config"]["kda_layers"].push_back(4);
  EXPECT_THAT(problem_of(twice), HasSubstr("expected a layer that is listed once"));
  missing["linear_attn_config"]["full_attn_layers"] = {4, 8, 12, 16, 20, 24};
  EXPECT_THAT(problem_of(missing), HasSubstr("layer 27, which no list has"));
  EXPECT_THAT(problem_of(kimi_linear({{"attn_res_block_size", 12}})),
              HasSubstr("attn_res_block_size is 12"));
  EXPECT_THAT(problem_of(falcon_h1({{"mamba_d_ssm", 4000}})),
              HasSubstr("mamba_d_ssm is 4000, expected 4096, the 32 heads of 128"));
  EXPECT_THAT(problem_of(jamba({{"attn_layer_offset", 8}})),
              HasSubstr("attn_layer_offset is 8, expected an integer from 0 to 7"));
  EXPECT_THAT(problem_of(nemotron3({{"hidden_size", 64}, {"num_hidden_layers", 2}})),
              HasSubstr("hybrid_override_pattern is missing"));
  EXPECT_THAT(
      problem_of(nemotron3(
          {{"hidden_size", 64}, {"num_hidden_layers", 2}, {"hybrid_override_pattern", "ME"}})),
      HasSubstr("n_routed_experts is missing"));
  EXPECT_THAT(problem_of(lfm2({{"layer_types", layers_of(16, {}, "mamba")}})),
              HasSubstr("layer_types[0] is \"mamba\", expected conv or full_attention"));
  EXPECT_THAT(problem_of(gemma4({{"hidden_size_per_layer_input", 256}})),
              HasSubstr("hidden_size_per_layer_input is 256, expected 0"));
  json halves = gemma4_31b();
  halves["text_config"]["num_global_key_value_heads"] = 5;
  EXPECT_THAT(problem_of(halves), HasSubstr("expected a divisor of the 32"));
  EXPECT_THAT(problem_of({{"model_type", "bailing_hybrid"}, {"hidden_size", 64}}),
              AllOf(HasSubstr("short_conv_kernel_size is missing"), HasSubstr("not modelled")));
  EXPECT_THAT(problem_of({{"model_type", "zamba2"}}), HasSubstr("blocks of attention"));
}

// Ling's linear attention: files say use_qk_norm, which is what one means that lacks it.
TEST(HfRecurrent, LingsNormsOfHeadsAreRead) {
  const json ling = with(testing::family("bailing_moe_linear", "BailingMoeLinearV2ForCausalLM"),
                         R"({"num_hidden_layers": 5, "num_experts": 8,
                             "num_experts_per_tok": 2, "moe_intermediate_size": 32})"_json);
  EXPECT_TRUE(read(ling).qk_norm);
  EXPECT_EQ(read(with(ling, {{"use_qk_norm", true}})), read(ling));
  EXPECT_FALSE(read(with(ling, {{"use_qk_norm", false}})).qk_norm);
}

struct CountedByHand {
  json config;
  std::int64_t parameters, active;
};

// Mamba-2 2.7B, Bamba 9B, Granite 4.0 H Tiny (7B, 1B active), Nemotron-H 8B, Qwen3-Next (80B, 3B
// active): what their names say, and every matrix, bias and norm by hand.
TEST(HfRecurrent, ParametersOfPublishedModels) {
  const std::vector<CountedByHand> all = {
      // A layer: in 10,576 x 2,560; convolution 5,376 x 4 and bias; 3 x 80; norm 5,120; out; norm.
      {mamba2(), 2'702'599'680, 2'702'599'680},
      // 29 layers of 102,286,976 (Mamba-2) and 3 of 41,943,040 (attention), each with 176,160,768.
      {bamba(), 9'780'235'392, 9'780'235'392},
      {granite_tiny(), 6'939'037'248, 1'465'470'528},
      // 24 of 109,640,064 (Mamba-2), 4 of 41,947,136 (attention), 24 of 176,164,864 (MLP).
      {nemotron_h(), 8'100'852'736, 8'100'852'736},
      // 36 of 33,718,464 (delta), 12 of 27,263,488 (attention), each with 1,614,813,184.
      {qwen3_next(), 79'674'391'296, 3'874'929'408},
  };
  for (const CountedByHand& one : all) {
    const Model m = read(one.config);
    const ParameterCounts counts = count_parameters(m);
    EXPECT_EQ(counts.total(m.layers), one.parameters) << m.family;
    EXPECT_EQ(counts.active(m.layers), one.active) << m.family;
    EXPECT_FALSE(m.planning_only.empty()) << m.family;
  }
}

TEST(HfRecurrent, LayersHaveTheHalvesThatFilesSay) {
  const Model granite = read(granite_tiny());
  EXPECT_EQ(count(granite, {Mixer::kRecurrence, Channels::kExperts}), 36);
  EXPECT_EQ(granite.kind(5), (LayerKind{Mixer::kAttention, Channels::kExperts}));
  EXPECT_EQ(granite.expert_layers(), 40);
  const Model nemotron = read(nemotron_h());
  EXPECT_EQ(count(nemotron, {Mixer::kRecurrence, Channels::kNone}), 24);
  EXPECT_EQ(count(nemotron, {Mixer::kNone, Channels::kMlp}), 24);
  EXPECT_EQ(nemotron.kind(7), (LayerKind{Mixer::kAttention, Channels::kNone}));
  const Model qwen = read(qwen3_next());
  EXPECT_EQ(qwen.kind(3).mixer, Mixer::kAttention);
  EXPECT_EQ(count(qwen, {Mixer::kRecurrence, Channels::kExperts}), 36);
}

TEST(HfRecurrent, FlopsCountProductsStatesAndConvolution) {
  const Model m = read(mamba2(R"({"hidden_size": 64, "num_hidden_layers": 2,
      "num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16, "vocab_size": 100})"_json));
  EXPECT_EQ(count_parameters(m).total(2), 66'648);
  for (const std::int64_t length : {128, 4096}) {  // a recurrence does not grow with the sequence
    const ForwardFlops flops = forward_flops_per_token(m, length);
    EXPECT_EQ(flops.matrices, 2 * (2 * 64 * (324 + 128) + 6400));
    EXPECT_EQ(flops.attention, 2 * (7 * 128 * 16 + 2 * 192 * 4));
  }
  const Model qwen = read(qwen3_next());
  // 36 states of 32 heads of 128 x 128, and 12 layers of attention of 16 heads of 256.
  EXPECT_EQ(forward_flops_per_token(qwen, 4096).attention,
            36.0 * (8 * 4096 * 128 + 2 * 8192 * 4) + 12.0 * 2 * 4096 * 4096);
}

TEST(HfRecurrent, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_THAT(problem_of(mamba2({{"n_groups", 3}})), HasSubstr("n_groups is 3"));
  EXPECT_THAT(problem_of(nemotron_h({{"hybrid_override_pattern", "M-"}})),
              HasSubstr("52 letters, one a layer"));
  EXPECT_THAT(problem_of(nemotron_h({{"num_hidden_layers", 2}, {"hybrid_override_pattern", "MX"}})),
              HasSubstr("M, *, - and E"));
  EXPECT_THAT(problem_of(qwen3_next({{"layer_types", {"linear_attention"}}})),
              HasSubstr("a type for each of the 48 layers"));
  EXPECT_THAT(problem_of(qwen3_next({{"mlp_only_layers", {0}}})), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(problem_of(bamba({{"layer_types", std::vector<std::string>(32, "conv")}})),
              HasSubstr("layer_types[0] is \"conv\""));
}

}  // namespace
}  // namespace shardwright
