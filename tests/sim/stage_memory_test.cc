// SPDX-License-Identifier: Apache-2.0
// What a stage of a model-parallel plan holds: activations by its place, buffers by their types,
// and the whole model between all ranks.
#include "sim/memory/stage_memory.h"

#include "sim/memory/memory.h"
#include "tests/sim/activation_formulas.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/stage_formulas.h"

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
    return f(kept_by_layer(model, model_parallel, h100().stack)) / (8192.0 * 8192.0);
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
      const Model model = shipped(name);
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
            for (const bool experts : {false, true}) {
              if (experts && !model.is_moe()) continue;
              const formulas::LayerActivations formula =
                  formulas::layer_activations(writer, experts);
              const bool runs_again = again.recompute != Recompute::kNone;
              const double counted = runs_again ? formula.checkpoint : formula.kept;
              EXPECT_NEAR(
                  f(kept_by_layer(model, plan, profile.stack, runs_again, experts)) / counted, 1,
                  0.005)
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

/// What a chunk of so many layers of the third part has allocated between a backward pass and the
/// weight gradients that it put off.
MemoryLevel put_off(const Model& model, const Plan& plan, std::int64_t layers, bool head = false) {
  const profiles::Profile& profile = h100();
  const LayerPrograms programs(model, plan, profile.stack, profile.cluster.gpu);
  ChunkContent content = partition_layers(model, plan, profile.stack)[3];
  content.layers = layers;
  content.recomputed = plan.ckpt_layers > 0 ? layers : 0;
  content.head = head;
  Schedule chunk;
  lower_chunk(model, plan, profile.stack, profile.cluster, programs, content, chunk,
              ChunkUse::kWalked);
  ChunkMemory memory(chunk);
  MemoryChange both = memory.of(ChunkSection::kForward);
  both.add(memory.of(ChunkSection::kBackward, PassPart::kPrompt));
  return both.net;
}

// Of every product its input and the gradient of its output, in the type in which they are
// multiplied; of the head the gradient of the logits in the type of the weights, its fp32 ones are
// gone.
TEST(StageMemoryTest, DeferredWeightGradientsHoldWhatTheyRead) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 1, 8, 64);
  plan.parallel.pp_schedule = PipelineKind::kZb1p;
  const double tokens = f(plan.seq_len * plan.micro_batch);
  const double h = f(model.hidden), ffn = f(model.ffn), kv = f(model.kv_heads * model.head_dim);
  const double inputs = 3 * h + ffn, gradients = (h + 2 * kv) + h + 2 * ffn + h;
  for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
    plan.numerics.precision = precision;
    const double width = precision == Precision::kFp8 ? 1 : 2;
    for (const bool recomputed : {false, true}) {
      plan.recompute = recomputed ? Recompute::kFull : Recompute::kNone;
      plan.ckpt_layers = recomputed ? model.layers : 0;
      EXPECT_EQ(f(put_off(model, plan, 2).bytes - put_off(model, plan, 1).bytes),
                width * tokens * (inputs + gradients));
      EXPECT_EQ(f(put_off(model, plan, 1, true).of(MemoryCategory::kLoss)),
                2 * tokens * f(model.vocab));
    }
  }
}

// Latent attention: of the keys that heads share and of the rotated ones nothing is left once the
// gradients of the two products up are there.
TEST(StageMemoryTest, DeferredWeightGradientsOfLatentAttentionHoldNoKeys) {
  const Model model = shipped("deepseek-v3");
  Plan plan = plan_of(64, 1, 8, 64);
  plan.parallel.pp_schedule = PipelineKind::kZb1p;
  plan.parallel.ep = 8;
  plan.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  const double h = f(model.hidden), heads = f(model.heads);
  const LatentAttention& l = model.latent;
  const double queries = heads * f(l.nope_dim + l.rope_dim), up = heads * f(l.nope_dim + l.v_dim);
  const double latents = f(l.q_rank + l.kv_rank + l.rope_dim);
  const double chosen = f(model.experts.per_token), ffn = f(model.experts.ffn);
  const double shared = f(model.experts.shared_ffn);
  const double inputs = h + heads * f(l.v_dim) + h + chosen * (h + ffn) + shared;
  const double gradients = queries + up + latents + h + chosen * (2 * ffn + h) + 2 * shared + h;
  const double tokens = f(plan.seq_len * plan.micro_batch);
  for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
    plan.numerics.precision = precision;
    const double width = precision == Precision::kFp8 ? 1 : 2;
    // Normed latents stay in bf16; the scores of the router.
    const double rest = 2 * latents + 4 * f(model.experts.count);
    EXPECT_NEAR(f(put_off(model, plan, 2).bytes - put_off(model, plan, 1).bytes) / tokens,
                width * (inputs + gradients) + rest, 0.003 * width * (inputs + gradients));
  }
}

// Of Megatron, parameters and state: 0.5 % and less, for what shards are padded to.
TEST(StageMemoryTest, WhatIsHeldIsWhatFormulasCount) {
  const Model dense = shipped("llama-3-8b");
  const Model moe = shipped("mixtral-8x7b");
  std::vector<Plan> plans;
  for (const std::int64_t pp : {1, 2, 4}) {
    for (const Strategy strategy :
         {Strategy::kDdp, Strategy::kZero1, Strategy::kDistributedOptimizer}) {
      Plan plan = plan_of(32, 2, pp, 8);
      plan.strategy = strategy;
      plans.push_back(plan);
      plan.reduce_dtype = DType::kBf16;
      plans.push_back(plan);
      plan.numerics.precision = Precision::kFp8;
      plans.push_back(plan);
      plan.numerics.fp8_params = true;
      plans.push_back(plan);
      plan.numerics = {};
      plan.numerics.lora = 16;
      plans.push_back(plan);
      plan.numerics.quantize = Quantize::kNf4;
      plans.push_back(plan);
      plan.numerics = {};
      for (const Optimizer optimizer : {Optimizer::kAdamw8bit, Optimizer::kMuon, Optimizer::kSgd}) {
        plan.numerics.optimizer = optimizer;
        plans.push_back(plan);
      }
      plan.offload = Offload::kOptimizer;
      plans.push_back(plan);
    }
  }
  int compared = 0;
  for (const Plan& plan : plans) {
    for (const Model* model : {&dense, &moe}) {
      if (model->is_moe() && plan.numerics.lora > 0) continue;
      const std::vector<MemoryLevel> levels = levels_of_stages(*model, h100(), plan);
      for (std::size_t s = 0; s < levels.size(); ++s) {
        const auto formula = formulas::states(*model, plan, h100(), static_cast<std::int32_t>(s));
        for (const MemoryCategory category :
             {MemoryCategory::kParameters, MemoryCategory::kMaster, MemoryCategory::kGradients,
              MemoryCategory::kOptimizer}) {
          const double counted = formula[static_cast<std::size_t>(category)];
          EXPECT_NEAR(f(levels[s].of(category)), counted, 0.005 * counted)
              << model->name << ", " << name_of(category) << ", " << name_of(plan.strategy)
              << ", pp " << plan.parallel.pp << ", stage " << s << ", lora " << plan.numerics.lora
              << ", optimizer " << static_cast<int>(plan.numerics.optimizer);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

// Between stages gradients wait whole in the type of the reduction for the last micro-batch.
TEST(StageMemoryTest, Fsdp2KeepsWholeGradientsBetweenStages) {
  const Model model = llama_70b();
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan = plan_of(64, 4, 4, 16);
  plan.stack = "torch-compile";
  plan.strategy = Strategy::kFsdp2;
  const std::vector<ChunkContent> parts = partition_layers(model, plan, torch.stack);
  const double middle =
      formulas::chunk_parameters(model, ModelUnits(model, plan.parallel), parts[1]).total();
  const MemoryLevel level = levels_of_stages(model, torch, plan)[1];
  EXPECT_NEAR(f(level.of(MemoryCategory::kGradients)), 4 * middle, 0.005 * 4 * middle);
  EXPECT_NEAR(f(level.of(MemoryCategory::kGatherBuffers)), 2 * middle, 0.005 * 2 * middle);
}

TEST(StageMemoryTest, FirstStageHoldsMostPasses) {
  const Model model = llama_70b();
  const Plan plan = plan_of(64, 4, 8, 64);
  const std::vector<MemoryLevel> memory = levels_of_stages(model, h100(), plan);
  const auto activations = [&](std::size_t stage) {
    return f(memory[stage].of(MemoryCategory::kActivations));
  };
  for (std::size_t stage = 1; stage < 8; ++stage) {
    EXPECT_GT(activations(stage - 1), activations(stage));
  }
  // Eight micro-batches of ten layers, and what a backward pass works with.
  const double kept = 8 * 10 * f(kept_by_layer(model, plan, h100().stack));
  EXPECT_GT(activations(0), kept);
  EXPECT_LT(activations(0), 1.03 * kept);
}

// Arenas hold all that is alive, so it is certain before anything has its place.
TEST(StageMemoryTest, ArenasTakeNoLessThanWhatIsAlive) {
  const Model model = llama_70b();
  const profiles::Profile own = profiles::load_profile("dgx-h100", "native");
  ProgramCache programs(model, own.stack, own.cluster.gpu);
  StageMemory memory(model, own, programs);
  for (const PipelineInfo& info : kPipelineInfos) {
    if (info.id == PipelineKind::kDualpipe) continue;
    for (const std::int64_t pp : {2, 4}) {
      for (const std::int64_t accum : {pp, 6 * pp}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
          Plan plan = plan_of(64, 8, pp, accum);
          plan.stack = "native";
          plan.strategy = Strategy::kZero1;
          plan.parallel.pp_schedule = info.id;
          if (info.takes_virtual_stages()) plan.parallel.virtual_stages = 2;
          plan.recompute = recompute;
          plan.ckpt_layers = recompute == Recompute::kNone ? 0 : model.layers;
          const auto parts = partition_layers(model, plan, own.stack);
          const auto all = memory.levels(plan, parts);
          const auto least = memory.least_levels(plan, parts, StageMemory::Stages::kAll);
          ASSERT_EQ(all.size(), least.size());
          for (std::size_t stage = 0; stage < all.size(); ++stage) {
            EXPECT_LE(least[stage].bytes, all[stage].bytes)
                << info.name << ", pp " << pp << ", " << accum << ", stage " << stage;
            EXPECT_GT(f(least[stage].bytes), 0.7 * f(all[stage].bytes));
          }
          EXPECT_EQ(memory.levels(plan, parts, all.front().bytes - 1).size(), 1u);
        }
      }
    }
  }
}

// What the search asks of a plan is what a prediction of all stages answers.
TEST(StageMemoryTest, TheFullestStageIsAmongThoseThatAreLookedAt) {
  const Model dense = llama_70b();
  const Model moe = shipped("deepseek-v3");
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  int compared = 0;
  std::size_t looked_at = 0, stages = 0;
  for (const PipelineInfo& info : kPipelineInfos) {
    for (const std::int64_t pp : {2, 4, 8, 16}) {
      for (const std::int64_t accum : {1, 4, 16, 64}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
          for (const Model* model : {&dense, &moe}) {
            for (const profiles::Profile* profile : {&h100(), &torch}) {
              Plan plan = plan_of(256, 2, pp, accum * (info.groups_micro_batches ? pp : 1));
              plan.stack = profile->stack.id;
              if (profile == &torch) plan.strategy = Strategy::kFsdp2;
              plan.parallel.pp_schedule = info.id;
              plan.parallel.ep = model->is_moe() ? 8 : 1;
              if (info.takes_virtual_stages()) plan.parallel.virtual_stages = 2;
              plan.recompute = recompute;
              plan.ckpt_layers = recompute == Recompute::kNone ? 0 : model->layers / 2;
              try {
                check_plan(plan, *model, 8);
              } catch (const Error&) {
                continue;
              }
              ProgramCache programs(*model, profile->stack, profile->cluster.gpu);
              StageMemory memory(*model, *profile, programs);
              const auto parts = partition_layers(*model, plan, profile->stack);
              const auto most = [&](StageMemory::Stages which, std::size_t& count) {
                Bytes bytes = 0;
                for (const MemoryLevel& level : memory.least_levels(plan, parts, which)) {
                  bytes = std::max(bytes, estimated_reserved_bytes(level.peak(), profile->stack));
                  ++count;
                }
                return bytes;
              };
              EXPECT_EQ(most(StageMemory::Stages::kFullest, looked_at),
                        most(StageMemory::Stages::kAll, stages))
                  << model->name << ", " << profile->stack.id << ", " << info.name << ", pp " << pp
                  << ", " << accum << " micro-batches";
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
  EXPECT_LT(4 * looked_at, 3 * stages);
}

double stage_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                   std::size_t stage, MemoryCategory category) {
  return f(levels_of_stages(model, profile, plan)[stage].of(category));
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
  const double buckets = bytes(MemoryCategory::kGradientBuffers);
  plan.reduce_dtype = DType::kBf16;
  EXPECT_DOUBLE_EQ(bytes(MemoryCategory::kGradients), 2 * held);
  EXPECT_NEAR(bytes(MemoryCategory::kGradientBuffers) - buckets, 8 * held / 2 + 1e9, 1);
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
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile-eager-loss");
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
  const auto kept = [&] { return kept_by_layer(model, plan, torch.stack, true); };
  const Bytes wide = kept();
  plan.numerics.precision = Precision::kFp8;
  EXPECT_EQ(kept(), wide);
}

TEST(StageMemoryTest, MastersOfTheWeightsTypeAreTheWeights) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 4, 8, 64);
  const auto bytes = [&](MemoryCategory category) {
    return stage_bytes(model, h100(), plan, 3, category);
  };
  const double weights = bytes(MemoryCategory::kParameters);
  EXPECT_GT(bytes(MemoryCategory::kMaster), 0);
  plan.master_dtype = DType::kBf16;
  EXPECT_EQ(bytes(MemoryCategory::kMaster) + bytes(MemoryCategory::kParameters), weights);
}

TEST(StageMemoryTest, RanksHoldTheModelBetweenThem) {
  const Model model = llama_70b();
  const Plan plan = plan_of(64, 1, 8, 64);
  double total = 0;
  for (const ChunkContent& chunk : partition_layers(model, plan, h100().stack)) {
    total += formulas::chunk_parameters(model, ModelUnits(model, plan.parallel), chunk).total();
  }
  EXPECT_DOUBLE_EQ(total, static_cast<double>(count_parameters(model).total(model.layers)));
}

}  // namespace
}  // namespace shardwright::sim
