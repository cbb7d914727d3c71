// SPDX-License-Identifier: Apache-2.0
#include "sim/program/expert_program.h"

#include <memory>

#include "profiles/cluster_file.h"
#include "sim/core/collective.h"
#include "sim/program/low_precision.h"
#include "tests/sim/prediction.h"
#include "tests/sim/stage_formulas.h"
#include "tests/sim/timed_list.h"

namespace shardwright::sim {
namespace {

class ExpertPrograms : public ::testing::Test {
 protected:
  ExpertPrograms() {
    plan_.strategy = Strategy::kDistributedOptimizer;
    plan_.gpus = 16;
    plan_.seq_len = 4096;
    plan_.grad_accum = 8;
    plan_.recompute = Recompute::kNone;
    plan_.stack = "megatron-core";
    plan_.parallel.ep = 8;
    plan_.parallel.dispatcher = Dispatcher::kAllToAll;
    plan_.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  }

  UnitProgram layer(const Model& m) const {
    return ProgramWriter(m, plan_, profile_.stack)
        .layer(false, {Mixer::kAttention, Channels::kExperts});
  }
  TimedList time(const Ops& ops) { return timed_list(profile_, plan_, ops); }
  double step_s(const Model& m) { return predict(m, profile_, plan_).time.iteration_s; }
  std::string problem(const Model& m) {
    return refusal_of([&] {
      check_plan(plan_, m, profile_.cluster.gpus_per_node);
      predict(m, profile_, plan_);
    });
  }
  static std::ptrdiff_t count(const Ops& ops, OpKind kind) {
    return std::count_if(ops.begin(), ops.end(), [&](const Op& op) { return op.kind == kind; });
  }

  profiles::Profile profile_ = profiles::load_profile("dgx-h100", "megatron-core");
  Plan plan_;
  const Model qwen_ = shipped("qwen3-30b-a3b");
};

TEST_F(ExpertPrograms, RowsOfAllExpertsAreThoseThatTheTokensChose) {
  for (const std::int64_t ep : {1, 2, 8, 16}) {
    plan_.parallel.ep = ep;
    const ExpertShape s = expert_shape(qwen_, plan_, profile_.stack);
    EXPECT_EQ(s.local_experts, 128 / ep);
    EXPECT_EQ(s.all_rows(), 8.0 * 4096);  // each of e ranks sends as many as it gets
  }
  std::vector<double> rows(128, 1.0);
  rows[0] = 5;  // the first of 16 ranks has 12 of 132
  plan_.parallel.expert_load =
      ExpertLoad{Routing::kMeasured, "", std::make_shared<const ExpertLoad::Layers>(1, rows)};
  EXPECT_NEAR(expert_shape(qwen_, plan_, profile_.stack).all_rows(), 192.0 / 132 * 8 * 4096, 8);
  plan_.parallel.expert_capacity = 1;  // what is beyond is dropped
  EXPECT_EQ(expert_shape(qwen_, plan_, profile_.stack).all_rows(), 8.0 * 4096);
}

TEST_F(ExpertPrograms, FourExchangesALayerMoveEveryRowThatLeavesItsRank) {
  const UnitProgram body = layer(qwen_);
  const auto expert = static_cast<std::size_t>(CommGroup::kExpert);
  const double rows = 2.0 * 8 * 4096 * 2048;
  const double counts = 4.0 * 128 * 8 * 7 / 8;
  const double weights = 4.0 * 8 * 4096;
  EXPECT_DOUBLE_EQ(time(body.forward).sent[expert].total(), (2 * rows + weights) * 7 / 8 + counts);
  EXPECT_DOUBLE_EQ(time(body.backward).sent[expert].total(), (2 * rows + weights) * 7 / 8);
  plan_.parallel.ep = 1;
  EXPECT_EQ(time(layer(qwen_).forward).sent[expert].total(), 0);
}

TEST_F(ExpertPrograms, ProductsOfExpertsAreThoseOfTheirTokens) {
  // Forward of a layer: attention and k experts for each token, as the model counts them.
  const Model m = qwen_;
  const double products = time(layer(m).forward).flops / 4096;
  const ParameterCounts counts = count_parameters(m);
  const double attention =
      static_cast<double>(counts.layer_matrices) - 3.0 * 2048 * static_cast<double>(m.ffn);
  EXPECT_NEAR(products, 2 * (attention + static_cast<double>(counts.active_experts) + 2048 * 128),
              1e-6 * products);
  EXPECT_NEAR(time(layer(m).backward).flops / 4096, 2 * products, 1e-6 * products);
}

TEST_F(ExpertPrograms, WhatPassesAFullExpertByCountsForNothing) {
  const double all = model_flops(qwen_, plan_);
  plan_.parallel.expert_capacity = 1.25;
  EXPECT_EQ(model_flops(qwen_, plan_), all);
  plan_.parallel.expert_capacity = 0.25;
  const ParameterCounts counts = count_parameters(qwen_);
  const double tokens = 4096.0 * 8, of_experts = static_cast<double>(counts.active_experts) *
                                                 static_cast<double>(counts.expert_layers);
  EXPECT_NEAR(all - model_flops(qwen_, plan_), 0.75 * 6 * tokens * of_experts, 1e-6 * all);
}

TEST_F(ExpertPrograms, TheHostWaitsForCountsUnlessAnExpertHasACapacity) {
  const auto waits = [&] {
    const Ops ops = layer(qwen_).forward;
    return std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.host_reads; });
  };
  EXPECT_EQ(waits(), 1);
  for (const Dispatcher dispatcher : {Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
    plan_.parallel.dispatcher = dispatcher;
    EXPECT_EQ(waits(), 1) << name_of(dispatcher);
  }
  plan_.parallel.expert_capacity = 1;
  EXPECT_EQ(waits(), 0);
}

TEST_F(ExpertPrograms, GraphsHoldWhatHasAKnownShape) {
  const auto host = [&](CudaGraphs graphs) {
    return timed_list(profile_, plan_, layer(qwen_).forward, graphs).host_s;
  };
  EXPECT_EQ(host(CudaGraphs::kStep), 0);
  EXPECT_GT(host(CudaGraphs::kLayers), 0);
  EXPECT_LT(host(CudaGraphs::kLayers), host(CudaGraphs::kNone));
}

TEST_F(ExpertPrograms, KernelsForExpertsBeatTheExchangeBetweenNodes) {
  plan_.gpus = 64;
  plan_.parallel.ep = 32;
  const double exchange = step_s(qwen_);
  plan_.parallel.dispatcher = Dispatcher::kDeepEp;
  EXPECT_LT(step_s(qwen_), exchange);
}

TEST_F(ExpertPrograms, LatentAttentionMultipliesItsCountedWeights) {
  plan_.parallel.ep = 16;
  const Model m = shipped("deepseek-v3");
  const double products = time(layer(m).forward).flops / 4096;
  EXPECT_NEAR(products,
              2 * (187.1e6 + static_cast<double>(count_parameters(m).active_experts) +
                   3.0 * 7168 * 2048 + 7168.0 * 256),
              0.001 * products);
}

TEST_F(ExpertPrograms, DispatchedTokensFillMemoryAsCounted) {
  // 2h k + 4 g k + 2 g k bytes a token, DeepSeek-V3: 213 kB.
  plan_.parallel.ep = 16;
  const Model m = shipped("deepseek-v3");
  Model without = m;
  without.experts.shared_ffn = 0;
  Model none = without;
  none.experts.per_token = 1;
  const auto kept = [&](const Model& of) {
    return kept_by_layer(of, plan_, profile_.stack, false, true);
  };
  EXPECT_NEAR(static_cast<double>(kept(without) - kept(none)) / 4096, 7.0 / 8 * 212'992, 1);
}

// 4,096 tokens of each of 8 ranks, 5.34 of which have an expert here, become 8 x 4,096 rows.
TEST_F(ExpertPrograms, TokensThatCameOnceAreMadeRows) {
  plan_.parallel.dispatcher = Dispatcher::kHybridEp;
  const UnitProgram body = layer(qwen_);
  EXPECT_EQ(count(body.forward, OpKind::kPermute), 2);
  EXPECT_EQ(count(body.backward, OpKind::kPermute), 2);
  const auto at = std::find_if(body.forward.begin(), body.forward.end(),
                               [](const Op& op) { return op.kind == OpKind::kPermute; });
  const double row = 2.0 * static_cast<double>(qwen_.hidden);
  EXPECT_NEAR(static_cast<double>(at->work.bytes) / (4096 * row), distinct_places(128, 8, 8) + 8,
              1e-3);
}

TEST_F(ExpertPrograms, ExpertStateIsDividedByTheFewRanksThatHoldTheSame) {
  const auto optimizer = [&] {
    return f(levels_of_stages(qwen_, profile_, plan_)[0].of(MemoryCategory::kOptimizer));
  };
  const ParameterCounts counts = count_parameters(qwen_);
  const double experts = 48.0 * static_cast<double>(counts.experts);
  const double dense = static_cast<double>(counts.total(48)) - experts;
  // 16 ranks, 8 of them share the experts: two hold the same.
  EXPECT_NEAR(optimizer(), 8 * (dense / 16 + experts / 8 / 2), 1e-6 * optimizer());
  plan_.strategy = Strategy::kMegatronFsdp;
  EXPECT_NEAR(optimizer(), 8 * (dense / 16 + experts / 8 / 2), 1e-6 * optimizer());
}

TEST_F(ExpertPrograms, WhatRunsBesideAnotherMicroBatchCostsItsSmsUnlessItIsLonger) {
  plan_.parallel.dispatcher = Dispatcher::kDeepEp;
  const TimedList waits = time(layer(qwen_).forward);
  plan_.parallel.ep_overlap = true;
  const TimedList hidden = time(layer(qwen_).forward);
  const auto expert = static_cast<std::size_t>(CommGroup::kExpert);
  EXPECT_GT(waits.exposed_s[expert], 0);
  EXPECT_EQ(hidden.exposed_s[expert], 0);
  const double compute = waits.device_s - waits.exposed();
  EXPECT_GT(hidden.device_s, compute) << "20 SMs are taken meanwhile";
  EXPECT_LT(hidden.device_s, compute + 0.5 * waits.exposed_s[expert]);
  EXPECT_EQ(hidden.sent[expert].total(), waits.sent[expert].total());

  // What they read and write, kernels that memory bounds have to wait for.
  const double sms_only = compute + 20.0 / 132 * waits.exposed_s[expert];
  EXPECT_GT(hidden.device_s, sms_only);

  plan_.parallel.ep = 16;  // two nodes: exchanges take longer than all products
  plan_.parallel.dispatcher = Dispatcher::kAllToAll;
  EXPECT_GT(time(layer(qwen_).forward).exposed_s[expert], 0);
}

// One of m forward and one of m backward passes have nothing beside them.
TEST_F(ExpertPrograms, TheFirstAndTheLastPassShowTheirExchanges) {
  plan_.parallel.ep_overlap = true;
  plan_.parallel.dispatcher = Dispatcher::kDeepEp;  // no counts are gathered first
  profile_.stack.parallel.module_forward_s = profile_.stack.parallel.module_backward_s = 0;
  const auto shown_s = [&](std::int64_t micro_batches) {
    plan_.grad_accum = micro_batches;
    return predict(qwen_, profile_, plan_).exposed_s[static_cast<std::size_t>(CommGroup::kExpert)];
  };
  const double once = shown_s(1);
  EXPECT_GT(once, 0);
  EXPECT_GE(shown_s(8), once);
  EXPECT_LT(shown_s(8), 2.5 * once) << "what seven others hide, but for where they meet";
}

TEST_F(ExpertPrograms, BackwardOfSinksInFp8SkipsNoWindow) {
  const Model oss = shipped("gpt-oss-120b");
  const auto attended = [&](const char* stack, Precision precision, bool backward) {
    plan_.numerics.precision = precision;
    profile_ = profiles::load_profile("gb200-nvl72", stack);
    const UnitProgram body = layer(oss);
    const Ops& ops = backward ? body.backward : body.forward;
    return std::find_if(ops.begin(), ops.end(),
                        [](const Op& op) { return op.kind == OpKind::kAttention; })
        ->work.attended;
  };
  const float windows = attended("megatron-core-nemo-26.06", Precision::kBf16, true);
  EXPECT_LT(windows, 0.6F);
  EXPECT_EQ(attended("megatron-core-nemo-26.06", Precision::kFp8, false), windows);
  EXPECT_GT(attended("megatron-core-nemo-26.06", Precision::kFp8, true), 1);
  EXPECT_EQ(attended("megatron-core-nemo", Precision::kFp8, true), windows);
}

TEST_F(ExpertPrograms, ScaledAnglesLeaveTheFusedKernel) {
  const auto rope_bytes = [&](const Model& m) {
    const Ops ops = layer(m).forward;
    return std::find_if(ops.begin(), ops.end(),
                        [](const Op& op) { return op.kind == OpKind::kRope; })
        ->work.bytes;
  };
  const double elements = 4096.0 * (32 + 4) * 128;
  EXPECT_EQ(rope_bytes(qwen_), 4 * elements);
  Model yarn = qwen_;
  yarn.rope.scaling = RopeScaling::kYarn;
  EXPECT_EQ(rope_bytes(yarn), 24 * elements);
}

TEST_F(ExpertPrograms, SinksAndBiasesAreSlowWithSoftwareThatSaysSo) {
  const Model oss = shipped("gpt-oss-120b");
  Model plain = oss;
  plain.experts.bias = false;
  plan_.gpus = 64;
  const auto step = [&](const char* release, const Model& m) {
    profile_ = profiles::make_profile(profiles::load_cluster("dgx-h100"),
                                      profiles::load_preset("megatron-core", release));
    return step_s(m);
  };
  const double fast = step("NeMo 26.06", oss);
  EXPECT_GT(step("NeMo 26.06.01", oss), 1.1 * fast) << "sinks";
  EXPECT_GT(step("NeMo", oss), 1.05 * step("NeMo", plain)) << "biases";
  EXPECT_NEAR(step("NeMo 26.06", plain), fast, 0.01 * fast) << "fused since";
}

TEST_F(ExpertPrograms, ProductsActivateAndCastWhereAGraphHoldsTheStep) {
  profile_ = profiles::load_profile("gb200-nvl72", "megatron-core-nemo-26.06");
  plan_.parallel.dispatcher = Dispatcher::kHybridEp;
  plan_.numerics.precision = Precision::kFp8;
  plan_.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  const UnitProgram apart = layer(qwen_);
  plan_.parallel.cuda_graphs = CudaGraphs::kStep;
  const UnitProgram body = layer(qwen_);
  EXPECT_EQ(count(apart.forward, OpKind::kActivation), 1);
  EXPECT_EQ(count(body.forward, OpKind::kActivation), 0);
  EXPECT_EQ(count(body.backward, OpKind::kActivation), 0);
  // FC2 and the gradient of FC1's input read what the product before them cast.
  EXPECT_EQ(count(body.forward, OpKind::kQuantize), count(apart.forward, OpKind::kQuantize) - 1);
  EXPECT_EQ(count(body.backward, OpKind::kQuantize), count(apart.backward, OpKind::kQuantize) - 1);
  const auto up = std::find_if(body.forward.begin(), body.forward.end(),
                               [](const Op& op) { return op.kind == OpKind::kUpProjection; });
  EXPECT_EQ(up->work.kernels, 1);
  EXPECT_DOUBLE_EQ(up->work.extra_bytes, 8.0 * 4096 * 768 * 2 * 33 / 32) << "two casts with scales";
  EXPECT_LT(time(body.forward).device_s, time(apart.forward).device_s);
  EXPECT_LT(time(body.backward).device_s, time(apart.backward).device_s);
  EXPECT_EQ(time(body.backward).flops, time(apart.backward).flops);

  for (const auto& change : {+[](Plan& p) { p.parallel.expert_capacity = 1; },
                             +[](Plan& p) { p.numerics.fp8_recipe = Fp8Recipe::kTensorwise; }}) {
    const Plan before = plan_;
    change(plan_);
    EXPECT_EQ(count(layer(qwen_).forward, OpKind::kActivation), 1);
    plan_ = before;
  }
  profile_ = profiles::load_profile("gb200-nvl72", "megatron-core-nemo");
  EXPECT_EQ(count(layer(qwen_).forward, OpKind::kActivation), 1) << "before 26.06";
}

TEST_F(ExpertPrograms, HybridEpGathersWhoChoseWhom) {
  const auto gathered = [&] {
    double bytes = 0;
    for (const Op& op : layer(qwen_).forward) {
      if (op.kind == OpKind::kAllGather) bytes += op.collective.bytes;
    }
    return bytes;
  };
  plan_.parallel.dispatcher = Dispatcher::kHybridEp;
  EXPECT_EQ(gathered(), 4096.0 * 128 * 8) << "a byte for each token, expert and rank";
  plan_.parallel.ep = 1;
  EXPECT_EQ(gathered(), 0);
  plan_.parallel.ep = 8;
  plan_.parallel.dispatcher = Dispatcher::kDeepEp;
  EXPECT_EQ(gathered(), 0);
}

TEST_F(ExpertPrograms, AttentionInFp8ReadsWhatWasLaidOutAndCast) {
  const Model oss = shipped("gpt-oss-120b");
  profile_ = profiles::load_profile("gb200-nvl72", "megatron-core-nemo-26.06");
  plan_.numerics.precision = Precision::kFp8;
  const auto before_attention = [&](const Ops& ops) {
    const auto at = std::find_if(ops.begin(), ops.end(),
                                 [](const Op& op) { return op.kind == OpKind::kAttention; });
    return *std::prev(at);
  };
  const UnitProgram body = layer(oss);
  const Op inputs = before_attention(body.forward);
  EXPECT_EQ(inputs.kind, OpKind::kQuantize);
  EXPECT_NEAR(static_cast<double>(inputs.work.bytes), 8.06 * 4096 * (64 + 8 + 8) * 64, 1);
  EXPECT_NEAR(static_cast<double>(before_attention(body.backward).work.bytes),
              8.06 * 4096 * 64 * 64, 1);
  plan_.numerics.precision = Precision::kBf16;
  EXPECT_NE(before_attention(layer(oss).forward).kind, OpKind::kQuantize);
}

TEST_F(ExpertPrograms, CastsOfEachExpertStartOneAfterAnother) {
  plan_.numerics.precision = Precision::kFp8;
  plan_.numerics.fp8_recipe = Fp8Recipe::kTensorwise;
  const auto cast_of_experts = [&] {
    const Ops ops = layer(qwen_).forward;
    return *std::find_if(ops.begin(), ops.end(), [](const Op& op) {
      return op.kind == OpKind::kQuantize && op.work.groups > 1;
    });
  };
  Op cast = cast_of_experts();
  EXPECT_EQ(cast.work.starts, 5 * 16);
  const double s = time({cast}).device_s;
  cast.work.starts = 1;
  EXPECT_NEAR(s - time({cast}).device_s, 79 * profile_.cost.memory.values.t1_s, 1e-12);
  plan_.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  EXPECT_EQ(cast_of_experts().work.starts, 16 + 2) << "scales of all are put in order at once";
}

TEST_F(ExpertPrograms, ProgramsOfTheFusedLossBoundIt) {
  const auto loss_s = [&](const char* cluster, const char* stack) {
    profile_ = profiles::load_profile(cluster, stack);
    const Ops ops = ProgramWriter(qwen_, plan_, profile_.stack).head().forward;
    const auto at =
        std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::kLoss; });
    return std::pair(time({*at}).device_s, static_cast<double>(at->work.bytes));
  };
  const auto [b200, bytes] = loss_s("dgx-b200", "megatron-core-nemo");
  EXPECT_NEAR(bytes / b200, 0.28 * 8e12, 0.01 * bytes / b200);
  const auto [h100, same] = loss_s("dgx-h100", "megatron-core-nemo");
  EXPECT_GT(same / h100, 0.28 * 8e12) << "measured on Blackwell only";
}

TEST_F(ExpertPrograms, ProductsLaunchedOneByOneFillTheDeviceLess) {
  profile_.stack.parallel.grouped_in_one_kernel = true;
  const double together = time(layer(qwen_).backward).device_s;
  profile_.stack.parallel.grouped_in_one_kernel = false;
  EXPECT_GT(time(layer(qwen_).backward).device_s, together);
}

TEST_F(ExpertPrograms, RefusesWhatDoesNotDivideTheExperts) {
  plan_.gpus = 48;
  plan_.parallel.ep = 12;
  EXPECT_THAT(problem(qwen_), HasSubstr("ep is 12, which does not divide 128 experts"));
  plan_.gpus = 16;
  plan_.parallel.ep = 8;
  EXPECT_THAT(problem(shipped("qwen3-8b")),
              HasSubstr("ep is 8, but the model has no experts, expected 1"));
  plan_.parallel.ep = 1;
  EXPECT_THAT(problem(shipped("qwen3-8b")), HasSubstr("dispatcher is alltoall, but"));
}

TEST_F(ExpertPrograms, Fp8CastsInputsOnceAndLeavesTheRouterAlone) {
  const UnitProgram wide = layer(qwen_);
  plan_.numerics.precision = Precision::kFp8;
  plan_.numerics.fp8_recipe = Fp8Recipe::kDelayed;
  const UnitProgram narrow = layer(qwen_);
  EXPECT_EQ(count(wide.forward, OpKind::kQuantize), 0);
  // Queries, keys and values read one input; output, FC1 and FC2 another each.
  EXPECT_EQ(count(narrow.forward, OpKind::kQuantize), 4);
  for (const Op& op : narrow.forward) {
    if (op.work.kind != WorkKind::kGemm) continue;
    EXPECT_EQ(op.work.precision, op.kind == OpKind::kRouter ? Precision::kBf16 : Precision::kFp8);
  }
}

TEST_F(ExpertPrograms, TensorRanksCastTheirPartsBeforeTheyAreGathered) {
  const Model dense = shipped("llama-3-8b");
  plan_.parallel.ep = 1;
  plan_.parallel.dispatcher.reset();
  plan_.parallel.expert_load.reset();
  plan_.numerics.precision = Precision::kFp8;
  plan_.numerics.fp8_recipe = Fp8Recipe::kTensorwise;
  const auto first_cast = [&] {
    const UnitProgram body = ProgramWriter(dense, plan_, profile_.stack).layer(false);
    return std::find_if(body.forward.begin(), body.forward.end(),
                        [](const Op& op) { return op.kind == OpKind::kQuantize; })
        ->work.bytes;
  };
  const double elements = 4096.0 * 4096;
  EXPECT_EQ(first_cast(), 6 * elements);
  plan_.parallel.tp = 4;
  EXPECT_EQ(first_cast(), (5.0 / 4 + 2) * elements) << "and a transpose of all";
}

TEST_F(ExpertPrograms, Fp8IsFasterForLargeProductsAndRefusedWhereTheGpuHasNone) {
  const Model dense = shipped("llama-3-8b");
  plan_.parallel.ep = 1;
  plan_.parallel.dispatcher.reset();
  plan_.parallel.expert_load.reset();
  plan_.micro_batch = 2;
  plan_.parallel.cuda_graphs = CudaGraphs::kStep;
  const double bf16 = step_s(dense);
  plan_.numerics.precision = Precision::kFp8;
  const double fp8 = step_s(dense);
  EXPECT_LT(fp8, 0.9 * bf16);
  EXPECT_GT(fp8, 0.5 * bf16);
  plan_.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  EXPECT_THAT(problem(dense), HasSubstr("fp8_recipe is mxfp8"));
  plan_.numerics.fp8_recipe.reset();
  profile_ = profiles::load_profile("dgx-a100-80g", "megatron-core");
  EXPECT_THAT(problem(dense), HasSubstr("precision is fp8, which the GPU a100-80g lacks, "
                                        "expected bf16 or fp16"));
}

}  // namespace
}  // namespace shardwright::sim
