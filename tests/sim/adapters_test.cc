// SPDX-License-Identifier: Apache-2.0
// LoRA and an optimizer in the host's memory, against hand calculations.
#include "sim/program/adapters.h"

#include <filesystem>

#include "sim/program/optimizer_state.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/stage_formulas.h"
#include "tests/sim/timed_list.h"

namespace shardwright::sim {
namespace {

Plan adapted(std::int64_t gpus, std::int64_t tp, std::int64_t rank) {
  Plan plan = plan_of(gpus, tp, 1, 1);
  plan.numerics.lora = rank;
  return plan;
}

/// A framework that keeps frozen weights in few bits.
const profiles::Profile& trainer() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "hf-trainer");
  return profile;
}

/// In 80 layers of Llama 3 70B.
double adapters_of(const Plan& plan) {
  return 80.0 * static_cast<double>(adapter_elements(llama_70b(), plan, h100().stack, {}).dense);
}

// Llama 3 70B, a layer: q, k and v fused [8192 -> 10240], output [8192 -> 8192], gate and up
// [8192 -> 57344], down [28672 -> 8192]; rank * (in + out) of each.
constexpr double kWidths = (8192 + 10240) + (8192 + 8192) + (8192 + 57344) + (28672 + 8192);

TEST(AdaptersTest, ParametersAreRankTimesInAndOut) {
  EXPECT_DOUBLE_EQ(adapters_of(adapted(8, 1, 16)), 16.0 * 80 * kWidths);
  // Column-parallel matrices divide what they put out, row-parallel ones what they take.
  const double model_parallel =
      (8192 + 10240.0 / 8) + (8192.0 / 8 + 8192) + (8192 + 57344.0 / 8) + (28672.0 / 8 + 8192);
  EXPECT_DOUBLE_EQ(adapters_of(adapted(8, 8, 16)), 16 * 80 * model_parallel);
  EXPECT_EQ(adapters_of(plan_of(8, 1, 1, 1)), 0);
}

TEST(AdaptersTest, ProductsAreThoseOfTheFrozenModelAndTheAdapters) {
  const Model model = llama_70b();
  const Plan frozen = plan_of(8, 1, 1, 1);
  const UnitProgram whole = ProgramWriter(model, frozen, h100().stack).layer(false);
  const UnitProgram part = ProgramWriter(model, adapted(8, 1, 16), h100().stack).layer(false);
  const double tokens = 8192, narrow = 2 * tokens * 16 * kWidths;
  EXPECT_DOUBLE_EQ(product_flops(part.forward), product_flops(whole.forward) + narrow);
  // Backward of the frozen matrices is half of what it was; adapters do theirs twice.
  EXPECT_DOUBLE_EQ(product_flops(part.backward), product_flops(whole.backward) / 2 + 2 * narrow);
}

TEST(AdaptersTest, RecipesMayAdaptFewerMatrices) {
  const Model model = llama_70b();
  const Plan plan = adapted(8, 1, 16);
  profiles::Profile profile = h100();
  const auto adapt = [&](const std::string& matrices) {
    profile.stack.parallel.adapted = matrices;
    return static_cast<double>(adapter_elements(model, plan, profile.stack, {}).dense);
  };
  constexpr double kQkv = 8192 + 10240, kOutput = 8192 + 8192;
  EXPECT_EQ(adapt("all"), 16 * kWidths);
  EXPECT_EQ(adapt("attention"), 16 * (kQkv + kOutput));
  EXPECT_EQ(adapt("qkv"), 16 * kQkv);
  const UnitProgram whole = ProgramWriter(model, plan_of(8, 1, 1, 1), profile.stack).layer(false);
  const UnitProgram part = ProgramWriter(model, plan, profile.stack).layer(false);
  const double narrow = 2 * 8192.0 * 16 * kQkv;
  EXPECT_DOUBLE_EQ(product_flops(part.forward), product_flops(whole.forward) + narrow);
  EXPECT_DOUBLE_EQ(product_flops(part.backward), product_flops(whole.backward) / 2 + 2 * narrow);
  // What the gradients of frozen matrices alone would read goes.
  const auto kept = [&](const profiles::Profile& with) {
    return f(levels_of_stages(model, with, plan)[0].of(MemoryCategory::kActivations));
  };
  EXPECT_LT(kept(profile), 0.9 * kept(h100()));
}

TEST(AdaptersTest, ChecksAndRecomputationTakeTheAdaptersAlong) {
  const Model model = llama_70b();
  Plan plan = adapted(8, 1, 16);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = 80;
  const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(true);
  EXPECT_EQ(body.recompute.size(), body.forward.size());
  const UnitProgram head = ProgramWriter(model, plan, h100().stack).head();
  for (const Op& op : head.backward) EXPECT_NE(op.kind, OpKind::kWeightGradient);
  EXPECT_TRUE(ProgramWriter(model, plan, h100().stack).embedding().backward.empty());
}

double held_bytes(const Model& model, const Plan& plan, MemoryCategory category) {
  return f(levels_of_stages(model, h100(), plan)[0].of(category));
}

TEST(AdaptersTest, MemoryHoldsFrozenWeightsOnceAndStateOfAdaptersAlone) {
  const Model model = llama_70b();
  Plan plan = adapted(8, 8, 16);
  plan.strategy = Strategy::kDdp;
  const auto held = [&](MemoryCategory category) { return held_bytes(model, plan, category); };
  const double adapters = adapters_of(plan);
  const ChunkContent all = partition_layers(model, plan, h100().stack).front();
  const double frozen =
      formulas::chunk_parameters(model, ModelUnits(model, plan.parallel), all).total();
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kParameters), 2 * (frozen + adapters));
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kGradients), gradient_bytes(plan, h100().stack) * adapters);
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kMaster), 4 * adapters);
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kOptimizer), 8 * adapters);
}

// YaFSDP rotates two gradient buffers, and casts what is reduced in a third.
TEST(AdaptersTest, GradientBuffersHoldTheAdaptersOfALayerAlone) {
  Plan plan = adapted(64, 1, 16);
  plan.strategy = Strategy::kFsdp2;
  const double of_layer = 16.0 * kWidths;
  EXPECT_DOUBLE_EQ(held_bytes(llama_70b(), plan, MemoryCategory::kGradientBuffers),
                   (2 * 2 + 4) * of_layer);
}

TEST(AdaptersTest, ShardedWeightsAreGatheredAndAdaptersSummed) {
  const Model model = llama_70b();
  Plan plan = adapted(64, 1, 16);
  plan.strategy = Strategy::kMegatronFsdp;
  const auto held = [&](MemoryCategory category) { return held_bytes(model, plan, category); };
  const double adapters = 16.0 * 80 * kWidths;
  const double frozen = static_cast<double>(count_parameters(model).total(80));
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kParameters), 2 * (frozen + adapters) / 64);
  EXPECT_DOUBLE_EQ(held(MemoryCategory::kMaster), 4 * adapters / 64);
  // Frozen weights are gathered forward and backward, and nothing of theirs is summed.
  const Prediction step = predict(model, h100(), plan);
  const double sent = step.sent[static_cast<std::size_t>(CommGroup::kData)].total();
  // Two units are still there when backward begins: the head and the last layer.
  const double again = frozen - 128256.0 * 8192 - frozen / 80;
  const double all = (63.0 / 64) * (2 * (frozen + again) + 2 * 2 * adapters + 4 * adapters);
  EXPECT_NEAR(sent, all, 1e-3 * all);
}

// Llama 3 70B: layers in four bits with scales of 0.127 bits, embedding and head in bf16.
TEST(AdaptersTest, QuantizedWeightsAreKeptAndGatheredInFewerBits) {
  const Model model = llama_70b();
  Plan plan = adapted(8, 8, 16);
  plan.strategy = Strategy::kDdp;
  const Plan wide = plan;
  Plan narrow = plan;
  narrow.numerics.quantize = Quantize::kNf4;
  const auto held = [&](const Plan& of, MemoryCategory category) {
    return held_bytes(model, of, category);
  };
  const ChunkContent all = partition_layers(model, plan, h100().stack).front();
  const formulas::ChunkParameters frozen =
      formulas::chunk_parameters(model, ModelUnits(model, plan.parallel), all);
  const double each = (4 + 0.127) / 8;
  EXPECT_NEAR(held(wide, MemoryCategory::kParameters) - held(narrow, MemoryCategory::kParameters),
              (2 - each) * frozen.layers, 1e-4 * frozen.layers);
  // One matrix at a time is made bf16: gate or up, an eighth of it on each rank.
  const auto largest_temporary = [&](const Plan& of) {
    Bytes largest = 0;
    for (const Op& op : ProgramWriter(model, of, h100().stack).layer(false).forward)
      largest = std::max(largest, op.temporary_bytes);
    return f(largest);
  };
  EXPECT_EQ(largest_temporary(narrow), 2 * 2 * 28672.0 * 8192 / 8) << "of one product";
  Plan sharded = adapted(64, 1, 16);
  sharded.strategy = Strategy::kMegatronFsdp;
  const auto gathered = [&](Quantize quantize) {
    sharded.numerics.quantize = quantize;
    return predict(model, trainer(), sharded)
        .sent[static_cast<std::size_t>(CommGroup::kData)]
        .all_gather;
  };
  EXPECT_NEAR(gathered(Quantize::kNf4) / gathered(Quantize::kNone), each / 2, 1e-3);
  EXPECT_NEAR(gathered(Quantize::kInt8) / gathered(Quantize::kNone), 0.5, 0.02);
}

// Every product of a frozen matrix reads its weights in bf16, which are made before it: forward,
// again where a layer runs again, and backward. No weight gradient, and no adapter, does.
TEST(AdaptersTest, QuantizedWeightsAreMadeWideBeforeEachProduct) {
  const Model model = llama_70b();
  Plan plan = adapted(8, 1, 16);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = 80;
  const auto made = [](const Ops& ops) {
    double bytes = 0;
    for (const Op& op : ops) {
      if (op.kind == OpKind::kQuantize) bytes += static_cast<double>(op.work.bytes);
    }
    return bytes;
  };
  const UnitProgram wide = ProgramWriter(model, plan, h100().stack).layer(true);
  EXPECT_EQ(made(wide.forward), 0);
  plan.numerics.quantize = Quantize::kInt8;
  const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(true);
  const double matrices = 8192.0 * 10240 + 8192.0 * 8192 + 8192.0 * 57344 + 28672.0 * 8192;
  for (const Ops* ops : {&body.forward, &body.recompute, &body.backward})
    EXPECT_NEAR(made(*ops), (2 + 1.03125) * matrices, 10);
  const double eight = predict(model, trainer(), plan).time.iteration_s;
  plan.numerics.quantize = Quantize::kNone;
  const double wider = predict(model, trainer(), plan).time.iteration_s;
  EXPECT_GT(eight, wider);
  EXPECT_LT(eight, 1.5 * wider);
}

TEST(AdaptersTest, OnlyFrozenWeightsAreQuantized) {
  const Model model = llama_70b();
  Plan plan = plan_of(8, 1, 1, 1);
  plan.numerics.quantize = Quantize::kNf4;
  const auto why = [&] { return refusal_of([&] { check_plan(plan, model, 8); }); };
  EXPECT_THAT(why(), HasSubstr("quantize is nf4, but the model itself is trained, expected lora"));
  plan.numerics.lora = 16;
  EXPECT_EQ(why(), "accepted");
  plan.numerics.precision = Precision::kFp8;
  EXPECT_THAT(why(), HasSubstr("precision is fp8, expected precision bf16"));
}

// 2/3 of the products remain; norms, activations and attention do too, and adapters add sums of
// whole activations.
TEST(AdaptersTest, TrainingAdaptersTakesBetweenTwoThirdsAndAllOfTheTime) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 1, 4, 16);
  const double whole = predict(model, h100(), plan).time.iteration_s;
  plan.numerics.lora = 16;
  const double part = predict(model, h100(), plan).time.iteration_s;
  EXPECT_GT(part, 0.62 * whole);
  EXPECT_LT(part, 0.85 * whole);
  plan.numerics.lora = 256;
  EXPECT_GT(predict(model, h100(), plan).time.iteration_s, part);
}

Model mixture() {
  Model model = llama_70b();
  model.experts.count = 8;
  model.experts.per_token = 2;
  model.experts.ffn = 4096;
  return model;
}

// FC1 of an expert [8192 -> 2 * 4096], FC2 [4096 -> 8192]; the router has no adapter.
TEST(AdaptersTest, EveryExpertHasAdaptersOfItsOwn) {
  constexpr LayerKind kExpertLayer{Mixer::kAttention, Channels::kExperts};
  constexpr double kAttention = 16 * ((8192 + 10240) + (8192 + 8192));
  constexpr double kExpert = 16 * ((8192 + 2 * 4096) + (4096 + 8192));
  Plan plan = adapted(8, 1, 16);
  for (const std::int64_t ep : {1, 2, 8}) {
    plan.parallel.ep = ep;
    const AdapterElements of = adapter_elements(mixture(), plan, h100().stack, kExpertLayer);
    EXPECT_DOUBLE_EQ(static_cast<double>(of.dense), kAttention);
    EXPECT_DOUBLE_EQ(static_cast<double>(of.experts), kExpert * 8 / static_cast<double>(ep));
  }
  plan.strategy = Strategy::kDdp;
  EXPECT_DOUBLE_EQ(held_bytes(mixture(), plan, MemoryCategory::kMaster),
                   4 * 80 * (kAttention + kExpert));
}

/// Parameters that the narrow products of a forward pass read.
double narrow_parameters(const Ops& forward) {
  double parameters = 0;
  for (const Op& op : forward) {
    const bool narrow =
        op.keeps_high_precision && op.kind != OpKind::kRouter && op.kind != OpKind::kScan;
    if (op.work.kind == WorkKind::kGemm && narrow)
      parameters += static_cast<double>(op.work.n * op.work.k * op.work.groups);
  }
  return parameters;
}

// Of every layer of every model that ships: attention of all forms, experts, recurrences.
TEST(AdaptersTest, WhatIsTrainedIsWhatIsMultiplied) {
  const Plan plan = adapted(8, 1, 16);
  const std::filesystem::path models = profiles::data_dir() / "models";
  for (const auto& file : std::filesystem::directory_iterator(models)) {
    const Model model = load_model(models, file.path().stem().string());
    for (const LayerKind kind : kinds_of(model)) {
      const AdapterElements of = adapter_elements(model, plan, h100().stack, kind);
      const Model of_layer = model_of_layer(model, kind);
      const UnitProgram layer = ProgramWriter(of_layer, plan, h100().stack).layer(false, kind);
      EXPECT_DOUBLE_EQ(narrow_parameters(layer.forward), static_cast<double>(of.dense + of.experts))
          << file.path() << ", kind " << kind.index();
      EXPECT_TRUE(std::none_of(layer.backward.begin(), layer.backward.end(), [](const Op& op) {
        return op.kind == OpKind::kWeightGradient && !op.keeps_high_precision;
      })) << file.path();
    }
  }
}

TEST(AdaptersTest, AdaptersOfExpertsTakeLessThanTrainingThem) {
  Plan plan = plan_of(64, 1, 1, 4);
  plan.parallel.ep = 8;
  const double whole = predict(mixture(), h100(), plan).time.iteration_s;
  plan.numerics.lora = 16;
  const double part = predict(mixture(), h100(), plan).time.iteration_s;
  EXPECT_LT(part, whole);
  EXPECT_GT(part, 0.5 * whole);
}

// The state of the optimizer passes in and out over PCIe: 24 bytes a parameter at 54 GB/s.
TEST(OffloadTest, TheOptimizersStatePassesOverTheLink) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 8, 1, 1);
  Predictor predictor(model, h100());
  const Prediction kept = predictor.predict(plan);
  plan.offload = Offload::kOptimizer;
  const Prediction offloaded = predictor.predict(plan);
  const auto at = [](MemoryCategory category) { return static_cast<std::size_t>(category); };
  EXPECT_EQ(offloaded.memory.breakdown_bytes[at(MemoryCategory::kMaster)], 0);
  EXPECT_EQ(offloaded.memory.breakdown_bytes[at(MemoryCategory::kOptimizer)], 0);
  EXPECT_LT(offloaded.memory.total_bytes, kept.memory.total_bytes);
  const ChunkContent all = partition_layers(model, plan, h100().stack).front();
  const double owned =
      formulas::chunk_parameters(model, ModelUnits(model, plan.parallel), all).total() / 8;
  const double link_s = 24 * owned / h100().cluster.gpu.pcie_bytes_per_s;
  EXPECT_NEAR(offloaded.time.optimizer_s, link_s, 0.02 * link_s);
  EXPECT_GT(offloaded.time.iteration_s, kept.time.iteration_s);
}

TEST(OffloadTest, DataParallelStepsPayForItToo) {
  Model model = llama_70b();
  model.layers = 8;
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "torch-compile");
  Predictor predictor(model, profile);
  Plan plan;
  plan.strategy = Strategy::kFsdp2;
  plan.stack = "torch-compile";
  plan.gpus = 8;
  const Prediction kept = predictor.predict(plan);
  plan.offload = Offload::kOptimizer;
  const Prediction offloaded = predictor.predict(plan);
  const double owned = static_cast<double>(count_parameters(model).total(model.layers)) / 8;
  const double link_s = 24 * owned / profile.cluster.gpu.pcie_bytes_per_s;
  EXPECT_GE(offloaded.time.optimizer_s, link_s);
  EXPECT_LT(offloaded.time.optimizer_s, link_s + kept.time.optimizer_s);
  EXPECT_NEAR(offloaded.time.iteration_s - kept.time.iteration_s,
              offloaded.time.optimizer_s - kept.time.optimizer_s, 1e-3);
}

}  // namespace
}  // namespace shardwright::sim
