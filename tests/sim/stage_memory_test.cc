// SPDX-License-Identifier: Apache-2.0
// What a stage of a model-parallel plan holds: activations by its place, buffers by their types,
// and the whole model between all ranks.
#include "sim/memory/stage_memory.h"

#include <gtest/gtest.h>

#include "profiles/data_dir.h"
#include "sim/core/hf/config.h"
#include "sim/memory/unit_activations.h"
#include "tests/sim/activation_formulas.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

TEST(StageMemoryTest, LayersKeepWhatKorthikantiCounts) {
  Model model = llama_70b();
  model.gated_mlp = false;
  model.activation = Activation::kGelu;
  model.kv_heads = model.heads;
  model.ffn = 4 * model.hidden;
  Plan plan = plan_of(8, 1, 1, 1);
  const auto kept = [&](std::int64_t tp, bool sp) {
    Plan model_parallel = plan;
    model_parallel.parallel.tp = tp;
    if (tp > 1) model_parallel.parallel.sp = sp;
    return f(UnitActivations(model, model_parallel, h100().stack).layer(false).kept.all()) /
           (8192.0 * 8192.0);
  };
  EXPECT_NEAR(kept(1, false), 32, 0.1);
  EXPECT_NEAR(kept(8, true), 32.0 / 8, 0.1);
  EXPECT_NEAR(kept(8, false), 8 + 24.0 / 8, 0.1);
}

// Of Megatron. The formulas leave out heads before their norms and the norms of latent vectors, and
// count in the gross what selective checkpoints of operators keep.
TEST(StageMemoryTest, WhatLivesIsWhatFormulasCount) {
  struct Again {
    Recompute recompute;
    int pieces = 0;
  };
  int compared = 0;
  for (const char* stack : {"megatron-core", "megatron-lm-2021"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    for (const char* name : {"llama-3-8b", "mixtral-8x7b", "deepseek-v3"}) {
      const Model model = load_model(profiles::data_dir() / "models", name);
      for (const Again& again :
           {Again{Recompute::kNone}, Again{Recompute::kFull}, Again{Recompute::kPieces, kPieceNorm},
            Again{Recompute::kPieces, kPieceCoreAttention}, Again{Recompute::kPieces, kPieceMoe}}) {
        if (again.pieces == kPieceNorm && model.latent.kv_rank > 0) continue;
        for (const std::int64_t tp : {1, 2, 4}) {
          for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
            Plan plan = plan_of(64, tp, 1, 1);
            plan.stack = stack;
            plan.recompute = again.recompute;
            plan.pieces = static_cast<std::uint16_t>(again.pieces);
            plan.ckpt_layers = again.recompute == Recompute::kNone ? 0 : model.layers;
            plan.numerics.precision = precision;
            const ProgramWriter writer(model, plan, profile.stack);
            const UnitActivations units(model, plan, profile.stack);
            for (const bool experts : {false, true}) {
              if (experts && !model.is_moe()) continue;
              const formulas::LayerActivations formula =
                  formulas::layer_activations(writer, experts);
              const bool runs_again = again.recompute != Recompute::kNone;
              const double counted = runs_again ? formula.checkpoint : formula.kept;
              EXPECT_NEAR(f(units.layer(runs_again, experts).kept.all()) / counted, 1, 0.005)
                  << name << ", " << stack << ", tp " << tp << ", pieces " << again.pieces
                  << (precision == Precision::kFp8 ? ", fp8" : "") << (experts ? ", experts" : "");
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 200);
}

// Of every product its input and the gradient of its output; of the head the gradient of the logits
// in the type of the weights, its fp32 ones are gone.
TEST(StageMemoryTest, DeferredWeightGradientsHoldWhatTheyRead) {
  const Model model = llama_70b();
  const profiles::Profile& profile = h100();
  Plan plan = plan_of(64, 1, 8, 64);
  const double tokens = f(plan.seq_len * plan.micro_batch);
  const double h = f(model.hidden), ffn = f(model.ffn), kv = f(model.kv_heads * model.head_dim);
  const double inputs = 3 * h + ffn, gradients = (h + 2 * kv) + h + 2 * ffn + h;
  for (const bool recomputed : {false, true}) {
    plan.ckpt_layers = recomputed ? model.layers : 0;
    const UnitActivations units(model, plan, profile.stack);
    EXPECT_EQ(f(units.layer(recomputed).deferred.all()), 2 * tokens * (inputs + gradients));
    EXPECT_EQ(f(units.head().deferred.loss), 2 * tokens * f(model.vocab));
  }
}

std::vector<StageMemory> memory_of_stages(const Model& model, const profiles::Profile& profile,
                                          const Plan& plan) {
  return stage_memory(model, plan, profile, layout_of(plan, profile.cluster),
                      partition_layers(model, plan, profile.stack),
                      UnitActivations(model, plan, profile.stack));
}

TEST(StageMemoryTest, FirstStageHoldsMostPasses) {
  const Model model = llama_70b();
  const Plan plan = plan_of(64, 4, 8, 64);
  const std::vector<StageMemory> memory = memory_of_stages(model, h100(), plan);
  const auto activations = [&](std::size_t stage) {
    return memory[stage].breakdown_bytes[static_cast<std::size_t>(MemoryCategory::kActivations)];
  };
  for (std::size_t stage = 1; stage < 8; ++stage) {
    EXPECT_GT(activations(stage - 1), activations(stage));
  }
  const UnitActivations units(model, plan, h100().stack);
  const ActivationLevels& layer = units.layer(false);
  const double working = f(layer.backward.all() - layer.kept.all());
  const double message = f(units.embedding().kept.all());
  // What leaves is gone when it has been sent; its gradient comes back.
  EXPECT_NEAR(activations(0), 8 * 10 * f(layer.kept.all()) + message + working, 1);
}

double stage_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                   std::size_t stage, MemoryCategory category) {
  return memory_of_stages(model, profile, plan)[stage]
      .breakdown_bytes[static_cast<std::size_t>(category)];
}

TEST(StageMemoryTest, GradientsAndWeightsHaveTheTypesOfTheirBuffers) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 4, 8, 64);
  const auto bytes = [&](const profiles::Profile& profile, MemoryCategory category) {
    return stage_bytes(model, profile, plan, 3, category);
  };
  const double held = bytes(h100(), MemoryCategory::kParameters) / 2;  // a middle stage, in bf16
  EXPECT_DOUBLE_EQ(bytes(h100(), MemoryCategory::kGradients), 4 * held);
  plan.reduce_dtype = DType::kBf16;
  EXPECT_DOUBLE_EQ(bytes(h100(), MemoryCategory::kGradients), 2 * held);

  const profiles::Profile b200 = profiles::load_profile("dgx-b200", "megatron-core");
  plan.numerics.precision = Precision::kFp8;
  plan.numerics.fp8_recipe = Fp8Recipe::kTensorwise;
  EXPECT_DOUBLE_EQ(bytes(h100(), MemoryCategory::kParameters), (2 + 2) * held) << "and transposed";
  EXPECT_DOUBLE_EQ(bytes(b200, MemoryCategory::kParameters), (2 + 1) * held);
  plan.numerics.fp8_params = true;
  EXPECT_DOUBLE_EQ(bytes(h100(), MemoryCategory::kParameters), 2 * held);
  EXPECT_DOUBLE_EQ(bytes(b200, MemoryCategory::kParameters), held);
  plan.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  EXPECT_DOUBLE_EQ(bytes(b200, MemoryCategory::kParameters), 2 * held) << "scales run along rows";
}

// DeepSpeed with ZeRO-1: fp32 gradients beside those in 16 bits, or 16 bits alone, of which the own
// part is copied (2), flattened (2) and cast (4) out of a bucket of 5e8 elements.
TEST(StageMemoryTest, DeepSpeedKeepsGradientsAsItsOptimizersDo) {
  const Model model = llama_70b();
  const profiles::Profile blooms = profiles::load_profile("dgx-a100-80g", "megatron-deepspeed");
  Plan plan = plan_of(64, 4, 8, 64);
  plan.strategy = Strategy::kZero1;
  const auto bytes = [&](MemoryCategory category) {
    return stage_bytes(model, blooms, plan, 3, category);
  };
  const double held = bytes(MemoryCategory::kParameters) / 2;
  EXPECT_DOUBLE_EQ(bytes(MemoryCategory::kGradients), (4 + 2) * held);
  const double transfers = bytes(MemoryCategory::kWorkspace);
  plan.reduce_dtype = DType::kBf16;
  EXPECT_DOUBLE_EQ(bytes(MemoryCategory::kGradients), 2 * held);
  EXPECT_NEAR(bytes(MemoryCategory::kWorkspace) - transfers, 8 * held / 2 + 1e9, 1);
}

TEST(StageMemoryTest, LogitsInChunksExistOneAfterTheOther) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 4, 8, 64);
  const auto loss = [&] { return stage_bytes(model, h100(), plan, 7, MemoryCategory::kLoss); };
  plan.recompute = Recompute::kFull;  // so that the peak is the loss
  plan.ckpt_layers = model.layers;
  const double whole = loss();
  ASSERT_GT(whole, 0);
  plan.loss_chunks = 2;
  EXPECT_DOUBLE_EQ(loss(), whole / 2);
}

// torch/distributed/tensor/parallel/loss.py: four fp32 tensors of this rank's logits at once.
TEST(StageMemoryTest, PartsOfALossAreAddedUpByKernelsOfTheirOwn) {
  const Model model = llama_70b();
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan = plan_of(64, 8, 1, 1);
  plan.strategy = Strategy::kFsdp2;
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = model.layers;
  plan.micro_batch = 4;
  const auto loss = [&](std::int64_t tp) {
    plan.parallel.tp = tp;
    return stage_bytes(model, torch, plan, 0, MemoryCategory::kLoss);
  };
  const double tokens = 4 * 8192, vocab = static_cast<double>(model.vocab);
  EXPECT_DOUBLE_EQ(loss(8), tokens * vocab / 8 * 16);
  EXPECT_DOUBLE_EQ(loss(1), tokens * vocab * (4 + 4 + 4)) << "in backward: kept, gradient, cast";
}

// Selective checkpoints keep results of products and of attention, which are bf16.
TEST(StageMemoryTest, SelectiveCheckpointsHoldNothingInFp8) {
  const Model model = llama_70b();
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan = plan_of(64, 1, 1, 1);
  plan.recompute = Recompute::kSelectiveOp;
  plan.ckpt_layers = model.layers;
  const auto kept = [&] {
    return UnitActivations(model, plan, torch.stack).layer(true).kept.all();
  };
  const Bytes wide = kept();
  plan.numerics.precision = Precision::kFp8;
  EXPECT_EQ(kept(), wide);
}

TEST(StageMemoryTest, MastersOfTheWeightsTypeAreTheWeights) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 4, 8, 64);
  const auto master = [&] { return stage_bytes(model, h100(), plan, 3, MemoryCategory::kMaster); };
  EXPECT_GT(master(), 0);
  plan.master_dtype = DType::kBf16;
  EXPECT_EQ(master(), 0);
}

TEST(StageMemoryTest, RanksHoldTheModelBetweenThem) {
  const Model model = llama_70b();
  const Plan plan = plan_of(64, 1, 8, 64);
  double total = 0;
  for (const ChunkContent& chunk : partition_layers(model, plan, h100().stack)) {
    total += chunk_parameters(model, ModelUnits(model, plan.parallel), chunk).total();
  }
  EXPECT_DOUBLE_EQ(total, static_cast<double>(count_parameters(model).total(model.layers)));
}

}  // namespace
}  // namespace shardwright::sim
