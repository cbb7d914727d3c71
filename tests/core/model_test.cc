// SPDX-License-Identifier: Apache-2.0
#include "sim/core/model.h"

#include <functional>

#include "tests/core/common.h"

namespace shardwright {
namespace {

Model tiny() {
  Model m;
  m.name = "tiny";
  m.layers = 2;
  m.hidden = 8;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 6;
  m.ffn = 20;
  m.vocab = 50;
  m.max_positions = 16;
  return m;
}

std::string problem(const std::function<void(Model&)>& change) {
  Model m = tiny();
  change(m);
  return refusal_of([&] { check_model(m); });
}

TEST(Model, CountsEveryMatrixOfAGatedLayer) {
  const ParameterCounts counts = count_parameters(tiny());
  EXPECT_EQ(counts.embedding, 50 * 8);
  EXPECT_EQ(counts.positions, 0);
  EXPECT_EQ(counts.layer_matrices, 8 * 24 + 2 * 8 * 12 + 24 * 8 + 3 * 8 * 20);
  EXPECT_EQ(counts.layer_biases, 0);
  EXPECT_EQ(counts.layer_norms, 2 * 8);
  EXPECT_EQ(counts.final_norm, 8);
  EXPECT_EQ(counts.head, 50 * 8);
  EXPECT_EQ(counts.layer(), counts.layer_matrices + 16);
  EXPECT_EQ(counts.total(2), 400 + 2 * counts.layer() + 8 + 400);
}

TEST(Model, CountsBiasesNormsAndPositions) {
  Model m = tiny();
  m.gated_mlp = false;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.norm_bias = m.tied_head = m.qk_norm = true;
  m.position = Position::kLearned;
  m.norms_per_layer = 4;
  const ParameterCounts counts = count_parameters(m);
  EXPECT_EQ(counts.positions, 16 * 8);
  EXPECT_EQ(counts.layer_matrices, 8 * 24 + 2 * 8 * 12 + 24 * 8 + 2 * 8 * 20);
  EXPECT_EQ(counts.layer_biases, (24 + 2 * 12) + 8 + (20 + 8));
  EXPECT_EQ(counts.layer_norms, 4 * 2 * 8 + 2 * 6);
  EXPECT_EQ(counts.final_norm, 2 * 8);
  EXPECT_EQ(counts.head, 0);
  m.gated_mlp = true;
  EXPECT_EQ(count_parameters(m).layer_biases, (24 + 2 * 12) + 8 + (2 * 20 + 8));
}

TEST(Model, CountsForwardFlopsWithTheHeadAndHalfOfTheSquare) {
  Model m = tiny();
  const ParameterCounts counts = count_parameters(m);
  const ForwardFlops flops = forward_flops_per_token(m, 10);
  EXPECT_EQ(flops.matrices, 2.0 * static_cast<double>(2 * counts.layer_matrices + 400));
  // Scores and their use are 2*10*24 each per layer, half of it below the diagonal.
  EXPECT_EQ(flops.attention, 2 * (2 * 10 * 24 + 2 * 10 * 24) / 2.0);
  m.tied_head = true;
  EXPECT_EQ(forward_flops_per_token(m, 10).total(), flops.total());
}

TEST(Model, ProblemsNameTheField) {
  EXPECT_EQ(problem([](Model&) {}), "accepted");
  EXPECT_EQ(problem([](Model& m) { m.layers = 0; }),
            "model 'tiny': layers is 0, expected 1 to 16384");
  EXPECT_EQ(problem([](Model& m) { m.hidden = -8; }),
            "model 'tiny': hidden is -8, expected 1 to 262144");
  EXPECT_EQ(problem([](Model& m) { m.vocab = INT64_MAX; }),
            "model 'tiny': vocab is 9223372036854775807, expected 1 to 16777216");
  EXPECT_EQ(problem([](Model& m) { m.kv_heads = 3; }),
            "model 'tiny': kv_heads is 3, expected a divisor of the 4 heads");
  EXPECT_EQ(problem([](Model& m) { m.kv_heads = 8; }),
            "model 'tiny': kv_heads is 8, expected 1 to 4");
  EXPECT_EQ(problem([](Model& m) { m.head_dim = 5; }),
            "model 'tiny': head_dim is 5, expected an even number, because RoPE turns pairs");
  EXPECT_EQ(problem([](Model& m) { m.sliding_window = -1; }),
            "model 'tiny': sliding_window is -1, expected 0 or more");
  EXPECT_EQ(problem([](Model& m) {
              m.heads = m.kv_heads = 8192;
              m.head_dim = 256;
            }),
            "model 'tiny': heads * head_dim is 2097152, expected 1 to 1048576");
}

TEST(Model, TheLargestSizesNeitherOverflowNorPass) {
  Model m = tiny();
  m.layers = model_limits::kLayers;
  m.hidden = model_limits::kHidden;
  m.heads = m.kv_heads = model_limits::kHeads;
  m.head_dim = model_limits::kProjection / model_limits::kHeads;
  m.ffn = model_limits::kFfn;
  m.vocab = model_limits::kVocab;
  m.max_positions = model_limits::kPositions;
  m.position = Position::kLearned;
  const std::int64_t total = count_parameters(m).total(m.layers);
  EXPECT_GT(total, model_limits::kParameters);
  EXPECT_THROW(check_model(m), Error);
}

TEST(Model, AWindowLeavesTheBandOfScoresThatItSees) {
  Model m = tiny();
  m.layers = 4;
  m.sliding_window = 3;
  m.windowed_layers = 4;
  // Of 8 tokens the i-th sees min(i, 3): half of the square less the triangle beyond the window.
  EXPECT_DOUBLE_EQ(attended_share(m, 8), 1 - 25.0 / 64);
  EXPECT_EQ(attended_share(m, 3), 1);
  m.windowed_layers = 1;
  EXPECT_DOUBLE_EQ(attended_share(m, 8), 1 - 25.0 / 64 / 4);
  EXPECT_DOUBLE_EQ(forward_flops_per_token(m, 8).attention,
                   2.0 * 4 * static_cast<double>(m.q_dim()) * 8 * (1 - 25.0 / 64 / 4));
  m.windowed_layers = 4;
  m.chunked_attention = true;  // 3 + 3 + 2
  EXPECT_DOUBLE_EQ(attended_share(m, 8), (9.0 + 9 + 4) / 64);
}

TEST(Model, ExpertsReplaceTheMlpWhereALayerHasThem) {
  Model m = tiny();
  m.layers = 5;
  const std::int64_t dense = count_parameters(m).total(5);
  m.experts = {
      .count = 4, .per_token = 2, .ffn = 6, .shared_ffn = 10, .first_layer = 1, .every = 2};
  EXPECT_EQ(m.expert_layers(), 2);  // layers 1 and 3
  const ParameterCounts counts = count_parameters(m);
  EXPECT_EQ(counts.expert, 3 * m.hidden * 6);
  EXPECT_EQ(counts.router, m.hidden * 4);
  const std::int64_t change =
      counts.router + 3 * m.hidden * 10 + 4 * counts.expert - 3 * m.hidden * m.ffn;
  EXPECT_EQ(counts.total(5), dense + 2 * change);
  EXPECT_EQ(counts.active(5), counts.total(5) - 2 * 2 * counts.expert);
  EXPECT_EQ(count_parameters(m).mtp, 0);
  m.mtp_layers = 1;
  EXPECT_EQ(count_parameters(m).total(5), counts.total(5));
  EXPECT_EQ(count_parameters(m).mtp,
            counts.expert_layer() + 2 * m.hidden * m.hidden + 3 * m.hidden);
}

TEST(Model, SizesOfExpertsAreChecked) {
  const auto with_experts = [](auto change) {
    return problem([&](Model& m) {
      m.experts = {.count = 8, .per_token = 2, .ffn = 16};
      change(m.experts);
    });
  };
  EXPECT_EQ(with_experts([](Experts&) {}), "accepted");
  EXPECT_EQ(with_experts([](Experts& e) { e.per_token = 9; }),
            "model 'tiny': experts per token is 9, expected 1 to 8");
  EXPECT_EQ(with_experts([](Experts& e) { e.groups = 3; }),
            "model 'tiny': 3 groups of experts, expected a divisor of the 8 experts");
  EXPECT_THAT(problem([](Model& m) {
                m.layers = 1 << 14;
                m.hidden = 1 << 18;
                m.experts = {.count = 1 << 14, .per_token = 1, .ffn = 1 << 21};
              }),
              ::testing::HasSubstr("its experts make 4.43e+20 parameters"));
}

}  // namespace
}  // namespace shardwright
