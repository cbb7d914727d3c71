// SPDX-License-Identifier: Apache-2.0
// Layers of several kinds, recurrences among them, from their operations to predictions.

#include "sim/program/layer_program.h"
#include "sim/program/stages.h"
#include "tests/sim/hybrid_plans.h"
#include "tests/sim/prediction.h"
#include "tests/support/expect_error.h"

namespace shardwright::sim {
namespace {

Model tiny_mamba2() {
  return parse_hf_config(
      R"({"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4,
          "head_dim": 32, "n_groups": 2, "state_size": 16, "vocab_size": 128, "chunk_size": 64})",
      "c.json", "tiny");
}

/// Six layers: Mamba-2, MLP, attention, each a layer of its own, twice.
Model tiny_nemotron() {
  return parse_hf_config(
      R"({"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 8,
          "hybrid_override_pattern": "M-*-M-*-", "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
          "mlp_hidden_act": "relu2", "vocab_size": 128, "mamba_num_heads": 4, "mamba_head_dim": 32,
          "n_groups": 2, "ssm_state_size": 16, "chunk_size": 64,
          "max_position_embeddings": 4096})",
      "c.json", "tiny");
}

Model tiny_qwen3_next() {
  return parse_hf_config(
      R"({"model_type": "qwen3_next", "hidden_size": 64, "num_hidden_layers": 8,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
          "intermediate_size": 128, "moe_intermediate_size": 32,
          "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
          "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16, "vocab_size": 128})",
      "c.json", "tiny");
}

Bytes kept_by(const UnitPass& pass) {
  Bytes bytes = 0;
  for (const MemoryAction& action : pass.memory)
    bytes += action.acquire ? action.bytes : -action.bytes;
  return bytes;
}

constexpr LayerKind kRecurrent = {Mixer::kRecurrence, Channels::kNone};

// For backward stay: the norm's output (64 channels of a token), what the product in makes (324:
// two of 128, two of 2 x 16, 4), what the state puts out (128), the same times its gate (128), and,
// handed on, the next layer's input (64); all in bf16, and what the stack's norm keeps.
TEST(Recurrence, KeepsWhatBackwardReads) {
  const Model m = tiny_mamba2();
  const auto profile = profiles::load_profile("dgx-h100", "torch-compile");
  const Plan plan = hybrid_plan(1, Strategy::kSingle, "torch-compile");
  const LayerPrograms programs(m, plan, profile.stack);
  const double tokens = 256;
  double norm = profile.stack.norm.saved_bytes_per_token * tokens;
  for (const double saved : profile.stack.norm.saved_bytes) norm += saved * tokens * 64;
  const UnitPass& forward = programs.layer_forward(false, kRecurrent);
  EXPECT_EQ(kept_by(forward), static_cast<Bytes>(2 * tokens * (64 + 324 + 128 + 128 + 64) + norm));
  EXPECT_LT(kept_by(programs.layer_backward(false, kRecurrent)), 0);
}

// 4 chunks of 64 tokens: C B^T of 2 groups, 64 x 64 x 16; states of 4 heads, 16 x 32 x 64; what
// comes out, 64 x 32 x (32 + 16); backward three times that.
TEST(Recurrence, StatesAreComputedChunkByChunk) {
  const Model m = tiny_mamba2();
  const auto profile = profiles::load_profile("dgx-h100", "torch-compile");
  const LayerPrograms programs(m, hybrid_plan(1, Strategy::kSingle, "torch-compile"),
                               profile.stack);
  const auto flops = [](const UnitPass& pass) {
    double sum = 0;
    for (const Op& op : pass.ops) {
      if (op.kind == OpKind::kScan && op.work.kind == WorkKind::kGemm)
        sum += 2.0 * static_cast<double>(op.work.m * op.work.n * op.work.k * op.work.groups);
    }
    return sum;
  };
  const double each = 2.0 * 4 * (2 * 64 * 64 * 16 + 4 * 16 * 32 * 64 + 4 * 64 * 32 * (32 + 16));
  EXPECT_EQ(flops(programs.layer_forward(false, kRecurrent)), each);
  EXPECT_EQ(flops(programs.layer_backward(false, kRecurrent)), 3 * each);
}

// Strategies shard every parameter of every kind of layer, and a step gives back what it took.
TEST(Recurrence, EveryParameterIsOfAUnit) {
  for (const Model& m : {tiny_mamba2(), tiny_nemotron()}) {
    const auto profile = profiles::load_profile("dgx-h100", "torch-compile");
    for (const Strategy strategy : {Strategy::kSingle, Strategy::kFsdp2, Strategy::kDdp}) {
      Plan plan = hybrid_plan(strategy == Strategy::kSingle ? 1 : 2, strategy, "torch-compile");
      const Schedule schedule = executed_step(m, plan, profile.stack, 8).stages.front();
      EXPECT_EQ(schedule.unit_sizes.total(schedule.layers), count_parameters(m).total(m.layers))
          << m.family;
    }
  }
}

// Plans of every kind are predicted: sharded, recomputed, over tensor ranks and stages, with
// experts; and the parts of a model are all of it.
TEST(Recurrence, PlansOfEveryKindArePredicted) {
  const auto torch = profiles::load_profile("dgx-h100", "torch-compile");
  const auto megatron = profiles::load_profile("dgx-h100", "megatron-core");
  const Model nemotron = tiny_nemotron();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kSelectiveOp}) {
    Plan plan = hybrid_plan(8, Strategy::kFsdp2, "torch-compile");
    plan.recompute = recompute;
    plan.ckpt_layers = recompute == Recompute::kNone ? 0 : 8;
    const Prediction prediction = predict(nemotron, torch, plan);
    EXPECT_GT(prediction.time.iteration_s, 0);
    EXPECT_THAT(prediction.extrapolated, Contains("layers with Mamba-2: no published run"));
  }
  Plan staged = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
  staged.parallel.pp = 2;
  staged.parallel.tp = 2;
  staged.grad_accum = 4;
  EXPECT_GT(predict(nemotron, megatron, staged).time.iteration_s, 0);
  const std::vector<ChunkContent> chunks = partition_layers(nemotron, staged, megatron.stack);
  EXPECT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks.front().kinds, chunks.back().kinds);  // M-*- both
  Plan experts = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
  experts.parallel.ep = 4;
  EXPECT_GT(predict(tiny_qwen3_next(), megatron, experts).time.iteration_s, 0);
}

TEST(Recurrence, WhatIsNotModelledIsRefused) {
  const auto megatron = profiles::load_profile("dgx-h100", "megatron-core");
  const Model m = tiny_nemotron();
  const auto refusal = [&](const auto& change) {
    Plan plan = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
    change(plan);
    return testing::refusal_of([&] {
      check_plan(plan, m, 8);
      static_cast<void>(predict(m, megatron, plan));
    });
  };
  EXPECT_THAT(refusal([](Plan& plan) { plan.parallel.cp = 8; }),
              HasSubstr("cp is 8, which does not divide 4 heads of a recurrence"));
  EXPECT_THAT(refusal([](Plan& plan) { plan.parallel.tp = 4; }), HasSubstr("tp is 4"));
}

}  // namespace
}  // namespace shardwright::sim
