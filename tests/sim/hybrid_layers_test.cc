// SPDX-License-Identifier: Apache-2.0
// Kinds of layers beyond Mamba-2 and gated delta nets, from their operations to predictions.

#include "sim/program/layer_program.h"
#include "tests/sim/hybrid_plans.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

Model tiny(const std::string& keys) {
  return parse_hf_config(
      R"({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128,
          "max_position_embeddings": 4096, "model_max_length": 4096, )" +
          keys + "}",
      "c.json", "tiny");
}

constexpr const char* kLatent =
    R"("kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
       "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32,
       "intermediate_size": 128, "num_hidden_layers": 8, "linear_num_heads": 4,
       "linear_head_dim": 16, "linear_conv_kernel_dim": 4, )";

Model tiny_kimi() {
  return tiny(std::string(kLatent) + R"("model_type": "kimi_linear")");
}
Model tiny_ling() {
  return tiny(std::string(kLatent) + R"("model_type": "bailing_hybrid", "layer_group_size": 4)");
}
Model tiny_falcon() {
  return tiny(R"("model_type": "falcon_h1", "num_hidden_layers": 8, "intermediate_size": 128,
                 "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2,
                 "mamba_d_state": 16, "mamba_chunk_size": 64)");
}
Model tiny_jamba() {
  return tiny(R"("model_type": "jamba", "num_hidden_layers": 8, "intermediate_size": 128,
                 "num_experts": 4, "num_experts_per_tok": 2, "mamba_dt_rank": 8)");
}
Model tiny_nemotron3() {
  return tiny(R"("model_type": "nemotron_h", "hybrid_override_pattern": "ME*EME*E",
                 "num_hidden_layers": 8, "head_dim": 16, "intermediate_size": 128,
                 "mlp_hidden_act": "relu2", "mamba_num_heads": 4, "mamba_head_dim": 32,
                 "n_groups": 2, "ssm_state_size": 16, "chunk_size": 64, "n_routed_experts": 8,
                 "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_latent_size": 16,
                 "moe_shared_expert_intermediate_size": 64)");
}
Model tiny_minimax() {
  return tiny(R"("model_type": "minimax", "num_hidden_layers": 8, "intermediate_size": 128,
                 "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 64)");
}
Model tiny_lfm2() {
  return tiny(R"("model_type": "lfm2", "num_hidden_layers": 8, "intermediate_size": 384,
                 "full_attn_idxs": [3, 7])");
}
Model tiny_gemma4() {
  return tiny(R"("model_type": "gemma4_text", "num_hidden_layers": 12, "intermediate_size": 128,
                 "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 2,
                 "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
                 "sliding_window": 64)");
}

std::vector<Model> all_tiny() {
  return {tiny_kimi(),      tiny_ling(),    tiny_falcon(), tiny_jamba(),
          tiny_nemotron3(), tiny_minimax(), tiny_lfm2(),   tiny_gemma4()};
}

struct CompiledLayers {
  profiles::Profile profile = profiles::load_profile("dgx-h100", "torch-compile");
  Model model;
  Plan plan = hybrid_plan(1, Strategy::kSingle, "torch-compile");
  LayerPrograms programs{model, plan, profile.stack};

  explicit CompiledLayers(Model of) : model(std::move(of)) {}
};

/// Bytes of each of these that forward keeps.
Bytes kept(const UnitPass& pass, const std::vector<Tensor>& tensors) {
  Bytes bytes = 0;
  for (const MemoryAction& action : pass.memory) {
    if (std::find(tensors.begin(), tensors.end(), action.tensor) == tensors.end()) continue;
    if (action.offset == 0) bytes += action.acquire ? action.bytes : -action.bytes;
  }
  return bytes;
}

double kind_flops(const UnitPass& pass, OpKind kind) {
  double sum = 0;
  for (const Op& op : pass.ops) {
    if (op.kind == kind && op.work.kind == WorkKind::kGemm)
      sum += 2.0 * static_cast<double>(op.work.m * op.work.n * op.work.k * op.work.groups);
  }
  return sum;
}

double memory_bytes(const UnitPass& pass, OpKind kind) {
  double sum = 0;
  for (const Op& op : pass.ops) {
    if (op.kind == kind && op.work.kind == WorkKind::kMemory)
      sum += static_cast<double>(op.work.bytes);
  }
  return sum;
}

constexpr std::int64_t kTokens = 256;
constexpr LayerKind kRecurrentLayer = {Mixer::kRecurrence, Channels::kMlp};

// Kimi delta attention, of bf16: product in (3 x 64 + 4), two vectors of 16, what is made of them
// (2 x 64), what is convolved (3 x 64), the state's output and the same gated (64 each).
TEST(HybridLayers, KimiDeltaKeepsItsGatesApart) {
  const CompiledLayers p(tiny_kimi());
  EXPECT_EQ(kept(p.programs.layer_forward(false, kRecurrentLayer),
                 {Tensor::kRecurrentIn, Tensor::kRecurrentLatent, Tensor::kRecurrentUp,
                  Tensor::kRecurrentConvolved, Tensor::kRecurrentOut, Tensor::kRecurrentGated}),
            2 * kTokens * (196 + 32 + 128 + 192 + 64 + 64));
}

// The products of a gated delta net: 4 chunks of 64 tokens, 4 heads of 16.
TEST(HybridLayers, KimiDeltaHasTheProductsOfDeltaNets) {
  const CompiledLayers p(tiny_kimi());
  const double q = 64, n = 16;
  const double each = q * q * (n + 21) + q * (2 * n) * (q / 2) + q * n * n + n * n * q + q * q * n +
                      q * n * (q / 2 + n);
  EXPECT_DOUBLE_EQ(kind_flops(p.programs.layer_forward(false, kRecurrentLayer), OpKind::kScan),
                   2 * 4 * 4 * each);
  EXPECT_DOUBLE_EQ(kind_flops(p.programs.layer_backward(false, kRecurrentLayer), OpKind::kScan),
                   3 * 2 * 4 * 4 * each);
}

// Mamba's scan reads and writes 5 matrices of 128 channels, and 16 numbers of B and of C.
TEST(HybridLayers, MambaScansAtTheRateOfMemory) {
  const CompiledLayers p(tiny_jamba());
  const UnitPass& forward = p.programs.layer_forward(false, kRecurrentLayer);
  EXPECT_EQ(memory_bytes(forward, OpKind::kScan), 2 * kTokens * (5 * 128 + 2 * 16));
  EXPECT_EQ(kind_flops(forward, OpKind::kScan), 0);
  // In, what steps, B and C are made of, and the steps.
  EXPECT_EQ(kind_flops(forward, OpKind::kRecurrenceProjection),
            2.0 * kTokens * (64 * 256 + 128 * 40 + 8 * 128));
}

TEST(HybridLayers, ShortConvolutionsLieBetweenTwoGates) {
  const CompiledLayers p(tiny_lfm2());
  const UnitPass& forward = p.programs.layer_forward(false, kRecurrentLayer);
  EXPECT_EQ(memory_bytes(forward, OpKind::kGate), 2 * kTokens * 6 * 64);
  EXPECT_EQ(memory_bytes(forward, OpKind::kConvolution), 2 * kTokens * 2 * 64);
  EXPECT_EQ(kept(forward, {Tensor::kRecurrentIn, Tensor::kRecurrentOut, Tensor::kRecurrentConvolved,
                           Tensor::kRecurrentGated}),
            2 * kTokens * (3 + 1 + 1 + 1) * 64);
}

// Beside each other: the products of both, one norm and one residual.
TEST(HybridLayers, ParallelMixersShareANorm) {
  const CompiledLayers p(tiny_falcon());
  constexpr LayerKind kBoth = {Mixer::kParallel, Channels::kMlp};
  const UnitPass& forward = p.programs.layer_forward(false, kBoth);
  const auto count = [&](OpKind kind) {
    return std::count_if(forward.ops.begin(), forward.ops.end(),
                         [&](const Op& op) { return op.kind == kind; });
  };
  EXPECT_EQ(count(OpKind::kNorm), 2);
  EXPECT_EQ(count(OpKind::kAttention), 1);
  EXPECT_EQ(count(OpKind::kOutputProjection), 2);
  EXPECT_EQ(count(OpKind::kRecurrenceProjection), 1);
  EXPECT_EQ(kept(forward, {Tensor::kRecurrentProjected}), 0);
}

// A window shortens attention in its layers alone.
TEST(HybridLayers, WindowsAreThoseOfEachLayer) {
  const CompiledLayers p(tiny_gemma4());
  const auto attention = [&](std::uint8_t form) {
    const LayerKind kind = {Mixer::kAttention, Channels::kMlp, form};
    const UnitPass& forward = p.programs.layer_forward(false, kind);
    return *std::find_if(forward.ops.begin(), forward.ops.end(),
                         [](const Op& op) { return op.kind == OpKind::kAttention; });
  };
  EXPECT_EQ(attention(1).work.k, 16);
  EXPECT_FLOAT_EQ(attention(1).work.attended, 64.0F * (2 * 256 - 64) / (256 * 256));
  EXPECT_EQ(attention(2).work.k, 32);
  EXPECT_FLOAT_EQ(attention(2).work.attended, 1);
}

// Tokens are brought to 16 channels before they travel to experts.
TEST(HybridLayers, LatentExpertsGetNarrowRows) {
  const CompiledLayers p(tiny_nemotron3());
  const UnitPass& forward = p.programs.layer_forward(false, {Mixer::kNone, Channels::kExperts});
  EXPECT_EQ(kept(forward, {Tensor::kRows}), 2 * kTokens * 2 * 16);
  double latent = 0;
  for (const Op& op : forward.ops) {
    if (op.weight == Weight::kExpertLatentDown || op.weight == Weight::kExpertLatentUp)
      latent += static_cast<double>(op.work.m * op.work.n * op.work.k);
  }
  EXPECT_EQ(latent, 2.0 * kTokens * 64 * 16);
}

TEST(HybridLayers, EveryParameterIsOfAUnit) {
  const auto profile = profiles::load_profile("dgx-h100", "torch-compile");
  for (const Model& m : all_tiny()) {
    for (const Strategy strategy : {Strategy::kSingle, Strategy::kFsdp2, Strategy::kDdp}) {
      const Plan plan =
          hybrid_plan(strategy == Strategy::kSingle ? 1 : 2, strategy, "torch-compile");
      const Schedule schedule = executed_step(m, plan, profile.stack, 8).stages.front();
      EXPECT_EQ(schedule.unit_sizes.total(schedule.layers) + schedule.unit_sizes.all_experts(),
                count_parameters(m).total(m.layers))
          << m.family;
    }
  }
}

TEST(HybridLayers, PlansOfEveryKindArePredicted) {
  const auto torch = profiles::load_profile("dgx-h100", "torch-compile");
  const auto megatron = profiles::load_profile("dgx-h100", "megatron-core");
  for (const Model& m : all_tiny()) {
    double plain = 0;
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kFull, Recompute::kSelectiveOp}) {
      Plan plan = hybrid_plan(8, Strategy::kFsdp2, "torch-compile");
      plan.recompute = recompute;
      plan.ckpt_layers = recompute == Recompute::kNone ? 0 : m.layers;
      const Prediction prediction = predict(m, torch, plan);
      if (recompute == Recompute::kNone) plain = prediction.time.iteration_s;
      EXPECT_GE(prediction.time.iteration_s, plain) << m.family;
    }
    Plan staged = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
    staged.parallel.pp = 2;
    staged.grad_accum = 4;
    EXPECT_GT(predict(m, megatron, staged).time.iteration_s, 0) << m.family;
  }
}

// Heads divide over tensor and context ranks; context ranks exchange heads for tokens.
TEST(HybridLayers, RanksDivideHeads) {
  const auto megatron = profiles::load_profile("dgx-h100", "megatron-core");
  for (const Model& m : {tiny_kimi(), tiny_falcon(), tiny_nemotron3(), tiny_gemma4()}) {
    Plan plan = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
    plan.parallel.tp = 2;
    EXPECT_GT(predict(m, megatron, plan).time.iteration_s, 0) << m.family;
    plan.parallel.cp = 2;
    EXPECT_GT(predict(m, megatron, plan).time.iteration_s, 0) << m.family;
  }
  const Model m = tiny_falcon();
  Plan plan = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
  plan.parallel.cp = 4;
  const LayerPrograms programs(m, plan, megatron.stack);
  const UnitPass& forward = programs.layer_forward(false, {Mixer::kParallel, Channels::kMlp});
  std::vector<double> exchanged;
  for (const Op& op : forward.ops) {
    if (op.collective && op.collective.pattern == Pattern::kExchange)
      exchanged.push_back(op.collective.bytes);
  }
  // Each of the two groups goes to two ranks. No norm: the gate stays.
  const double tokens = 256 / 4;
  EXPECT_THAT(exchanged, Contains(2 * tokens * (2 * 128 + 2 * 32 + 4 + 2 * 32)));
  EXPECT_THAT(exchanged, Contains(2 * tokens * 128));
}

TEST(HybridLayers, WhatNoFrameworkDoesIsRefusedByName) {
  const auto megatron = profiles::load_profile("dgx-h100", "megatron-core");
  const auto refused = [&](const Model& m, const auto& change) {
    Plan plan = hybrid_plan(8, Strategy::kDistributedOptimizer, "megatron-core");
    change(plan);
    return shardwright::testing::refusal_of([&] {
      check_plan(plan, m, 8);
      static_cast<void>(predict(m, megatron, plan));
    });
  };
  const auto tensor = [](Plan& plan) { plan.parallel.tp = 2; };
  EXPECT_THAT(refused(tiny_jamba(), tensor),
              HasSubstr("tp is 2, but no framework divides Mamba, expected 1"));
  EXPECT_THAT(refused(tiny_lfm2(), tensor), HasSubstr("divides short convolutions"));
  EXPECT_THAT(refused(tiny_minimax(), [](Plan& plan) { plan.parallel.cp = 2; }),
              HasSubstr("cp is 2, but no framework divides lightning attention"));
  EXPECT_THAT(refused(tiny_kimi(), [](Plan& plan) { plan.parallel.cp = 8; }),
              HasSubstr("cp is 8, which does not divide 4 heads of a recurrence"));
  const auto torch = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan = hybrid_plan(8, Strategy::kFsdp2, "torch-compile");
  plan.parallel.cp = 2;
  EXPECT_THAT(shardwright::testing::refusal_of(
                  [&] { static_cast<void>(predict(tiny_falcon(), torch, plan)); }),
              HasSubstr("torch-compile does not share sequences of Mamba-2"));
}

}  // namespace
}  // namespace shardwright::sim
