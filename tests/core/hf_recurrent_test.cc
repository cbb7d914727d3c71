// SPDX-License-Identifier: Apache-2.0
// Models with recurrences in place of attention: the parameters of published shapes and of small
// ones are counted by hand from the modules of Transformers' classes, matrix by matrix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/core/model.h"
#include "tests/core/hf_configs.h"

namespace shardwright {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::problem_of;
using testing::read;
using testing::with;

json mamba2(const json& more = json::object()) {
  return with({{"model_type", "mamba2"},
               {"hidden_size", 2560},
               {"num_hidden_layers", 64},
               {"num_heads", 80},
               {"head_dim", 64},
               {"n_groups", 1},
               {"state_size", 128},
               {"vocab_size", 50288},
               {"tie_word_embeddings", true}},
              more);
}

json bamba(const json& more = json::object()) {
  return with({{"model_type", "bamba"},
               {"hidden_size", 4096},
               {"num_hidden_layers", 32},
               {"num_attention_heads", 32},
               {"num_key_value_heads", 8},
               {"intermediate_size", 14336},
               {"vocab_size", 128256},
               {"attn_layer_indices", {9, 18, 27}},
               {"mamba_n_heads", 128},
               {"mamba_d_head", "auto"},
               {"mamba_n_groups", 1},
               {"mamba_d_state", 128}},
              more);
}

json granite_tiny() {
  json types = json::array();
  for (int layer = 0; layer < 40; ++layer) types.push_back(layer % 10 == 5 ? "attention" : "mamba");
  return {{"model_type", "granitemoehybrid"},
          {"hidden_size", 1536},
          {"num_hidden_layers", 40},
          {"num_attention_heads", 12},
          {"num_key_value_heads", 4},
          {"num_local_experts", 64},
          {"num_experts_per_tok", 6},
          {"intermediate_size", 512},
          {"shared_intermediate_size", 1024},
          {"vocab_size", 100352},
          {"mamba_n_heads", 48},
          {"mamba_d_head", 64},
          {"mamba_n_groups", 1},
          {"mamba_d_state", 128},
          {"tie_word_embeddings", true},
          {"layer_types", types}};
}

json nemotron_h(const json& more = json::object()) {
  return with({{"model_type", "nemotron_h"},
               {"hidden_size", 4096},
               {"num_hidden_layers", 52},
               {"hybrid_override_pattern", "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
               {"num_attention_heads", 32},
               {"num_key_value_heads", 8},
               {"attention_head_dim", 128},
               {"intermediate_size", 21504},
               {"mlp_hidden_act", "relu2"},
               {"vocab_size", 131072},
               {"mamba_num_heads", 128},
               {"mamba_head_dim", 64},
               {"n_groups", 8},
               {"ssm_state_size", 128}},
              more);
}

json qwen3_next(const json& more = json::object()) {
  return with({{"model_type", "qwen3_next"},
               {"hidden_size", 2048},
               {"num_hidden_layers", 48},
               {"num_attention_heads", 16},
               {"num_key_value_heads", 2},
               {"head_dim", 256},
               {"intermediate_size", 5120},
               {"moe_intermediate_size", 512},
               {"shared_expert_intermediate_size", 512},
               {"num_experts", 512},
               {"num_experts_per_tok", 10},
               {"vocab_size", 151936}},
              more);
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
  const auto count = [](const Model& m, LayerKind kind) {
    return std::count(m.kinds.begin(), m.kinds.end(), kind);
  };
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
  const Model m = read(mamba2({{"hidden_size", 64},
                               {"num_hidden_layers", 2},
                               {"num_heads", 4},
                               {"head_dim", 32},
                               {"n_groups", 2},
                               {"state_size", 16},
                               {"vocab_size", 100}}));
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
