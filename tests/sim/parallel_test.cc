// SPDX-License-Identifier: Apache-2.0
// Steps of model-parallel plans: groups on nodes, conservation of work, bytes and memory,
// and trends that published runs agree on.

#include <string_view>

#include "profiles/cluster_file.h"
#include "profiles/gpu_file.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/program/layer_program.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/stage_formulas.h"
#include "tests/sim/timed_list.h"

namespace shardwright::sim {
namespace {

double step_s(const Plan& plan) {
  static const Model model = llama_70b();
  return predict(model, h100(), plan).time.iteration_s;
}

TEST(LayoutTest, TensorRanksAreNeighboursAndStagesAreBlocks) {
  Plan plan = plan_of(64, 4, 4, 8);
  plan.parallel.cp = 2;
  const Layout layout = layout_of(plan, h100().cluster);
  EXPECT_EQ(layout.dp, 2);
  EXPECT_EQ(layout.group(CommGroup::kTensor), (RankGroup{4, 1}));
  EXPECT_EQ(layout.group(CommGroup::kContext), (RankGroup{2, 4}));
  EXPECT_EQ(layout.group(CommGroup::kData), (RankGroup{4, 4}));
  EXPECT_EQ(layout.members_in_domain(CommGroup::kContext), 2);
  EXPECT_EQ(layout.members_in_domain(CommGroup::kData), 2);
  EXPECT_EQ(layout.group(CommGroup::kPipeline).stride, 16);
  EXPECT_EQ(layout.transfer_group(0).ranks_per_node, 1) << "the next stage is on another node";
  EXPECT_EQ(layout.collective_group(CommGroup::kData).groups_per_node, 4);
}

TEST(LayoutTest, PipelineInsideTheDomainWhereTheOrderSaysSo) {
  Plan plan = plan_of(64, 2, 4, 8);
  plan.parallel.rank_order = "tp-cp-ep-pp-dp";
  const Layout layout = layout_of(plan, h100().cluster);
  EXPECT_EQ(layout.group(CommGroup::kPipeline).stride, 2);
  EXPECT_EQ(layout.transfer_group(0).ranks_per_node, 2);
  EXPECT_EQ(layout.members_in_domain(CommGroup::kData), 1);
}

TEST(LayoutTest, RacksAreUsedInPart) {
  const profiles::Profile rack = profiles::load_profile("gb200-nvl72", "megatron-core");
  EXPECT_EQ(layout_of(plan_of(1024, 8, 1, 1), rack.cluster).domain, 64);
}

TEST(UnitPrograms, TensorRanksShareTheProductsEvenly) {
  const Model model = llama_70b();
  const Plan one = plan_of(8, 1, 1, 1);
  const UnitProgram whole = ProgramWriter(model, one, h100().stack).layer(false);
  const ParameterCounts counts = count_parameters(model);
  EXPECT_DOUBLE_EQ(product_flops(whole.forward),
                   2.0 * static_cast<double>(counts.layer_matrices) * 8192.0);
  EXPECT_DOUBLE_EQ(product_flops(whole.backward), 2 * product_flops(whole.forward));
  for (const std::int64_t tp : {2, 4, 8}) {
    for (const bool sp : {false, true}) {
      Plan plan = plan_of(8, tp, 1, 1);
      plan.parallel.sp = sp;
      const UnitProgram part = ProgramWriter(model, plan, h100().stack).layer(false);
      EXPECT_DOUBLE_EQ(static_cast<double>(tp) * product_flops(part.forward),
                       product_flops(whole.forward));
      EXPECT_DOUBLE_EQ(static_cast<double>(tp) * product_flops(part.backward),
                       product_flops(whole.backward));
    }
  }
}

/// Bytes that a rank sends to its group in a layer.
double sent(const UnitProgram& body, CommGroup group, double ranks) {
  double total = 0;
  for (const Ops* list : {&body.forward, &body.backward}) {
    for (const Op& op : *list) {
      if (op.collective.bytes > 0 && op.collective.group == group)
        total += sent_bytes(op.collective, ranks).total();
    }
  }
  return total;
}

// 2 gathers and 2 scatters forward, 4 and 2 backward, each of 2 T h bytes; without sequence
// parallelism 2 all-reduces each way, each of which sends twice.
TEST(UnitPrograms, TensorGroupSendsWhatMegatronDoes) {
  const Model model = llama_70b();
  const double x = 2.0 * 8192 * 8192;
  for (const auto overlap :
       {TensorOverlap::kNone, TensorOverlap::kUserbuffers, TensorOverlap::kAsync}) {
    Plan plan = plan_of(8, 8, 1, 1);
    plan.parallel.tp_overlap = overlap;
    const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(false);
    EXPECT_DOUBLE_EQ(sent(body, CommGroup::kTensor, 8), 10 * x * 7 / 8);
  }
  Plan plan = plan_of(8, 8, 1, 1);
  plan.parallel.sp = false;
  const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(false);
  EXPECT_DOUBLE_EQ(sent(body, CommGroup::kTensor, 8), 4 * 2 * x * 7 / 8);
}

// What was gathered for a column-parallel product is not gathered again where it is kept.
TEST(UnitPrograms, InputsThatStayGatheredAreSentTwiceLess) {
  const Model model = llama_70b();
  const double x = 2.0 * 8192 * 8192;
  const profiles::Profile profile = profiles::load_profile("dgx-a100-80g", "aleph-alpha");
  const UnitProgram body = ProgramWriter(model, plan_of(8, 8, 1, 1), profile.stack).layer(false);
  EXPECT_DOUBLE_EQ(sent(body, CommGroup::kTensor, 8), 8 * x * 7 / 8);
}

// The ring sends keys and values c - 1 times forward; backward it sends them once, c - 2 times with
// their gradients, and the gradients home at last.
TEST(UnitPrograms, ContextRingSendsKeysAndValues) {
  const Model model = llama_70b();
  Plan plan = plan_of(8, 1, 1, 1);
  plan.parallel.cp = 4;
  const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(false);
  const double kv = 2.0 * 2048 * 2 * 1024;
  EXPECT_DOUBLE_EQ(sent(body, CommGroup::kContext, 4), (3 + 1 + 2 * 2 + 1) * kv);
}

// PyTorch's ring (torch/distributed/tensor/experimental/_attention.py): keys and values of all
// query heads by one gather in either direction, gradients of both in fp32 from rank to rank c
// times.
TEST(UnitPrograms, GatheredRingSendsKeysAndValuesOfAllQueryHeads) {
  const Model model = llama_70b();
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan = plan_of(64, 1, 1, 1);
  plan.strategy = Strategy::kFsdp2;
  plan.parallel.cp = 4;
  const UnitProgram body = ProgramWriter(model, plan, torch.stack).layer(false);
  const double elements = 2.0 * 8192 / 4 * 8192;
  EXPECT_DOUBLE_EQ(sent(body, CommGroup::kContext, 4), (2 * 3 * 2 + 4 * 4) * elements);
}

// With delayed scaling TransformerEngine's norms write fp8: their outputs need a transpose alone,
// what attention and the activation put out is read in bf16 and written twice.
TEST(UnitPrograms, NormsWriteFp8WhereTheScaleIsKnown) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 1, 1, 1);
  plan.numerics.precision = Precision::kFp8;
  const auto bytes = [&](Fp8Recipe recipe, OpKind kind) {
    plan.numerics.fp8_recipe = recipe;
    double sum = 0;
    for (const Op& op : ProgramWriter(model, plan, h100().stack).layer(false).forward) {
      if (op.kind == kind) sum += static_cast<double>(op.work.bytes);
    }
    return sum;
  };
  const double norms = 8192.0 * 2 * 8192, others = 8192.0 * (8192 + 28672);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kDelayed, OpKind::kQuantize), 2 * norms + 4 * others);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, OpKind::kQuantize), 6 * (norms + others));
  EXPECT_DOUBLE_EQ(
      bytes(Fp8Recipe::kTensorwise, OpKind::kNorm) - bytes(Fp8Recipe::kDelayed, OpKind::kNorm),
      norms);
}

/// Seconds of a layer's forward and backward on A100 nodes.
double layer_s(const Model& model, const profiles::Profile& profile) {
  const Plan plan = plan_of(8, 8, 1, 1);
  const UnitProgram body = ProgramWriter(model, plan, profile.stack).layer(false);
  return timed_list(profile, plan, body.forward).device_s +
         timed_list(profile, plan, body.backward).device_s;
}

// 96 heads of 150 elements are 300 bytes each: 4 + 2 products over all scores run at the fp32 rate.
TEST(UnitPrograms, HeadsThatAreNotWhole16BytesMissTheTensorCores) {
  const profiles::Profile blooms = profiles::make_profile(
      profiles::load_cluster("dgx-a100-80g"), profiles::load_preset("megatron-deepspeed", "2022"));
  profiles::Profile newer = blooms;
  newer.stack.parallel.tensor_cores_want_16_bytes = false;
  Model model = llama_70b();
  model.hidden = 14400;
  model.heads = model.kv_heads = 96;
  model.head_dim = 150;
  const double flops = 6.0 * 2 * 8192 * 8192 * 14400 / 8;
  const double at_fp32 = flops / (blooms.cluster.gpu.peak_fp32_flops * blooms.cost.gemm.values.e);
  const double more = layer_s(model, blooms) - layer_s(model, newer);
  EXPECT_GT(more, 0.8 * at_fp32);
  EXPECT_LT(more, 1.6 * at_fp32);
  model.head_dim = 152;
  EXPECT_EQ(layer_s(model, blooms), layer_s(model, newer));
}

TEST(UnitPrograms, ABlockingLaunchShowsTheHostBeforeEveryKernel) {
  const profiles::Profile blooms = profiles::make_profile(
      profiles::load_cluster("dgx-a100-80g"), profiles::load_preset("megatron-deepspeed", "2022"));
  profiles::Profile usual = blooms;
  usual.stack.parallel.blocking_launches = false;
  const Plan plan = plan_of(8, 8, 1, 1);
  const Ops forward = ProgramWriter(llama_70b(), plan, blooms.stack).layer(false).forward;
  const auto time = [&](const profiles::Profile& profile) {
    return timed_list(profile, plan, forward);
  };
  const TimedList hidden = time(usual);
  // The module behind each of two collectives is prepared while that travels.
  const double beside_s = 2 * blooms.stack.parallel.module_forward_s;
  EXPECT_NEAR(time(blooms).with_host_s, hidden.device_s + hidden.host_s - beside_s, 1e-4);
}

TEST(UnitPrograms, OneRankOfAKindCommunicatesNothing) {
  const Model model = llama_70b();
  const UnitProgram body = ProgramWriter(model, plan_of(8, 1, 1, 1), h100().stack).layer(true);
  for (const Ops* list : {&body.forward, &body.recompute, &body.backward}) {
    for (const Op& op : *list) EXPECT_EQ(op.collective.bytes, 0);
  }
}

TEST(BodyCostTest, GpusKeepLessUnderTheLoadOfATraining) {
  const auto kept = [](const char* cluster) {
    const profiles::Profile profile = profiles::load_profile(cluster, "megatron-core");
    const KernelCosts alone = kernel_costs(profile);
    OpCosts costs(profile);
    EXPECT_EQ(costs.memory_s(1e10, 1), memory_time_s(alone.memory, alone.rates, 1e10, 1));
    costs.place(layout_of(plan_of(8, 1, 1, 1), profile.cluster));
    return memory_time_s(alone.memory, alone.rates, 1e10, 1) / costs.memory_s(1e10, 1);
  };
  EXPECT_EQ(kept("dgx-h100"), 1);
  const TrainingLoad load = profiles::load_gpu("b200").gpu.training_load;
  ASSERT_LT(load.stream_share, 1);
  EXPECT_NEAR(kept("dgx-b200"), load.stream_share, 0.01);
}

TEST(StagesTest, LayersAreDividedOnce) {
  const Model model = llama_70b();
  for (const std::int64_t pp : {1, 2, 4, 5, 8}) {
    std::int64_t layers = 0;
    for (const ChunkContent& chunk :
         partition_layers(model, plan_of(64 * pp, 1, pp, 64), h100().stack)) {
      EXPECT_EQ(chunk.first_layer, layers);
      layers += chunk.layers;
    }
    EXPECT_EQ(layers, model.layers);
  }
}

TEST(StagesTest, EmbeddingAndLossCountWhereThatDivides) {
  Model model = llama_70b();
  model.layers = 126;
  Plan plan = plan_of(512, 8, 8, 64);
  plan.parallel.virtual_stages = 8;
  const std::vector<ChunkContent> chunks = partition_layers(model, plan, h100().stack);
  ASSERT_EQ(chunks.size(), 64U);
  EXPECT_EQ(chunks.front().layers, 1);
  EXPECT_EQ(chunks[1].layers, 2);
  EXPECT_EQ(chunks.back().layers, 1);
}

// Megatron-Bridge's layouts of DeepSeek-V3 in 16 chunks.
TEST(StagesTest, TheChunkWithTheHeadGetsWhatEqualOnesLeave) {
  Model model = llama_70b();
  model.layers = 61;
  Plan plan = plan_of(256, 1, 4, 64);
  plan.parallel.virtual_stages = 4;
  std::vector<ChunkContent> chunks = partition_layers(model, plan, h100().stack);
  ASSERT_EQ(chunks.size(), 16U);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(chunks[i].layers, 4);
  EXPECT_EQ(chunks.back().layers, 1);
  plan.parallel.pp = 8;  // 31 of 2 would leave none
  chunks = partition_layers(model, plan, h100().stack);
  EXPECT_EQ(chunks.front().layers, 2);
  EXPECT_EQ(chunks.back().layers, 1);
  model.mtp_layers = 1;  // "Et|(tt|)*30mL"
  chunks = partition_layers(model, plan, h100().stack);
  EXPECT_EQ(chunks.front().layers, 1);
  for (std::size_t i = 1; i < 31; ++i) EXPECT_EQ(chunks[i].layers, 2);
  EXPECT_EQ(chunks.back().layers, 0);
  EXPECT_EQ(chunks.back().extra_predictions, 1);
}

// 1 + 40 + 2 modules in four parts are 11, 11, 11 and 10.
TEST(StagesTest, SoftwareThatListsModulesCountsTheEndsAsLayers) {
  Model model = llama_70b();
  model.layers = 40;
  const profiles::Profile lists = profiles::load_profile("dgx-a100-80g", "aleph-alpha");
  const auto layers = [&](std::int64_t pp) {
    std::vector<std::int64_t> result;
    for (const ChunkContent& chunk :
         partition_layers(model, plan_of(8 * pp, 1, pp, 8), lists.stack))
      result.push_back(chunk.layers);
    return result;
  };
  EXPECT_EQ(layers(4), (std::vector<std::int64_t>{10, 11, 11, 8}));
  EXPECT_EQ(layers(2), (std::vector<std::int64_t>{21, 19}));
  // 43 modules in 40 parts would leave the last one without a layer.
  EXPECT_EQ(layers(40), std::vector<std::int64_t>(40, 1));
}

// Half of 16 layers of 67.1 M and a head of 268 M is passed by the eleventh layer.
TEST(StagesTest, SoftwareThatBalancesCostGivesTheHeadFewerLayers) {
  Model model = llama_70b();
  model.layers = 16;
  model.hidden = 2048;
  model.ffn = 8192;
  model.vocab = 131072;
  const profiles::Profile balances = profiles::load_profile("dgx-h100", "nanotron");
  const auto layers = [&](std::int64_t pp) {
    std::vector<std::int64_t> result;
    for (const ChunkContent& chunk :
         partition_layers(model, plan_of(8 * pp, 1, pp, 8), balances.stack))
      result.push_back(chunk.layers);
    return result;
  };
  EXPECT_EQ(layers(2), (std::vector<std::int64_t>{11, 5}));
  EXPECT_EQ(layers(4), (std::vector<std::int64_t>{6, 5, 5, 0})) << "the head is a stage";
  // Of eight stages the head would fill two.
  EXPECT_EQ(layers(8), std::vector<std::int64_t>(8, 2));
}

TEST(StagesTest, LayoutStringsAreMegatrons) {
  Model model = llama_70b();
  model.layers = 61;
  model.mtp_layers = 1;
  Plan plan = plan_of(256, 1, 16, 64);
  plan.parallel.virtual_stages = 2;
  plan.parallel.pp_layout = "Et*3|(tt|)*29m|L";
  const std::vector<ChunkContent> chunks = partition_layers(model, plan, h100().stack);
  ASSERT_EQ(chunks.size(), 32U);
  EXPECT_EQ(chunks.front().layers, 3);
  EXPECT_TRUE(chunks.front().embedding);
  EXPECT_EQ(chunks[30].extra_predictions, 1);
  EXPECT_EQ(chunks.back().layers, 0);
  EXPECT_TRUE(chunks.back().head);
  for (const char* wrong : {"Et|L", "E(t|L", "Et*3|(tt|)*30L", "Et*3|(tt|)*29mm|L",
                            "Et*3|(tt|)*28E(tt|)m|L", "Et*3|(tt|)*28L(tt|)m|L"}) {
    plan.parallel.pp_layout = wrong;
    EXPECT_THROW(partition_layers(model, plan, h100().stack), Error) << wrong;
  }
  plan.parallel.pp_layout = "Et*3||(tt|)*29L";
  EXPECT_EQ(shardwright::testing::refusal_of([&] { partition_layers(model, plan, h100().stack); }),
            "pp_layout is 'Et*3||(tt|)*29L', expected t or m in each chunk between the first and "
            "the last");
}

// fp32 gradients summed whole send twice 4 bytes a parameter, and gathered parameters 2.
TEST(DataParallelTest, WholeGradientsAreSummedInTheirOwnType) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 8, 1, 4);
  plan.strategy = Strategy::kZero1;
  const auto sent = [&](const char* stack) {
    const profiles::Profile profile = profiles::load_profile("dgx-a100-80g", stack);
    return predict(model, profile, plan).sent[static_cast<std::size_t>(CommGroup::kData)].total();
  };
  const double parameters =
      formulas::chunk_parameters(model, ModelUnits(model, plan.parallel),
                                 partition_layers(model, plan, h100().stack).front())
          .dense();
  EXPECT_NEAR(sent("aleph-alpha") / (parameters * 7 / 8), 2 * 4 + 2, 1e-9);
  EXPECT_NEAR(sent("megatron-core") / (parameters * 7 / 8), 4 + 2, 1e-9);
}

// Buffers that NCCL knows leave it few SMs to take: Megatron's FSDP in one node, and nowhere else.
TEST(DataParallelTest, RegisteredBuffersLeaveLayersMore) {
  const Model model = llama_70b();
  const auto registers = [&](Strategy strategy, std::int64_t gpus, const char* machine,
                             const char* stack) {
    const profiles::Profile profile = profiles::load_profile(machine, stack);
    Plan plan = plan_of(gpus, 1, 1, 1);
    plan.strategy = strategy;
    Schedule schedule;
    const LayerPrograms programs(model, plan, profile.stack, profile.cluster.gpu);
    lower(model, plan, profile.stack, profile.cluster, programs, schedule);
    return std::any_of(schedule.ops.begin(), schedule.ops.end(), [](const Op& op) {
      return op.kind == OpKind::kAllGather && !op.collective && op.collective.sms > 0;
    });
  };
  EXPECT_TRUE(registers(Strategy::kMegatronFsdp, 8, "dgx-h100", "megatron-core"));
  EXPECT_TRUE(registers(Strategy::kMegatronFsdp, 64, "gb200-nvl72", "megatron-core"));
  EXPECT_FALSE(registers(Strategy::kMegatronFsdp, 16, "dgx-h100", "megatron-core"));
  EXPECT_FALSE(registers(Strategy::kFsdp2, 8, "dgx-h100", "torch-compile"));
  Plan plan = plan_of(8, 1, 1, 4);
  plan.strategy = Strategy::kMegatronFsdp;
  const auto timed = [&](const profiles::Profile& profile) {
    return predict(model, profile, plan).time.iteration_s;
  };
  profiles::Profile without = h100();
  without.cost.collectives.values.nvls = false;
  EXPECT_LT(timed(h100()), 0.98 * timed(without));
}

// With userbuffers weight gradients of the head wait for the flush: none is lost, and they are no
// part of the micro-batches that the pipeline waits for.
TEST(ParallelStepTest, DeferredGradientsOfTheHeadAreDoneAfterThePipeline) {
  const Model model = llama_70b();
  Plan plan = plan_of(64, 4, 8, h100().stack.parallel.userbuffers.deferred_head_gradients);
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  const UnitProgram head = ProgramWriter(model, plan, h100().stack).head();
  const TimedList forward = timed_list(h100(), plan, head.forward),
                  backward = timed_list(h100(), plan, head.backward);
  ASSERT_GT(backward.delayed_s, 0);
  const double passes = static_cast<double>(plan.grad_accum);
  const double head_s =
      passes * (forward.device_s - forward.exposed() + backward.device_s - backward.exposed());
  ProgramCache programs(model, h100().stack, h100().cluster.gpu);
  PipelineRecord record;
  const SimulatedStep step = PipelineSimulator(model, h100(), programs).run(plan, &record);
  EXPECT_EQ(step.busiest, 7);
  EXPECT_NEAR(step.stages[7].compute_s - step.stages[6].compute_s, head_s, 5e-3 * head_s);
  EXPECT_NEAR(seconds_of(record.tails[7].deferred_ns), passes * backward.delayed_s, 1e-6);
  // Stages before the last wait for micro-batches without those gradients.
  const double rest_s = step.forward_s + step.backward_s - passes * backward.delayed_s;
  EXPECT_LT(seconds_of(record.pipeline.makespan),
            rest_s + 7 * (step.forward_s + step.backward_s) / passes);
}

// Directions of published runs (Aleph Alpha, dgxc-benchmarking, SimuMax).
TEST(ParallelStepTest, TrendsOfPublishedRuns) {
  Plan plan = plan_of(64, 4, 4, 64);
  const double base = step_s(plan);
  const profiles::Profile a100 = profiles::load_profile("dgx-a100-80g", "megatron-core");
  Plan with_sp = plan_of(64, 8, 4, 128), no_sp = with_sp;
  no_sp.parallel.sp = false;
  const Model model = llama_70b();
  EXPECT_GT(predict(model, a100, no_sp).time.iteration_s,
            predict(model, a100, with_sp).time.iteration_s);
  Plan wider = plan_of(64, 8, 4, 128);  // the same batch
  EXPECT_GT(step_s(wider), base);
  Plan interleaved = plan;
  interleaved.parallel.virtual_stages = 5;
  EXPECT_LT(step_s(interleaved), base);
  Plan recomputed = plan;
  recomputed.recompute = Recompute::kFull;
  recomputed.ckpt_layers = 80;
  EXPECT_GT(step_s(recomputed), 1.2 * base);
  EXPECT_LT(step_s(recomputed), 1.4 * base);
  Plan more = plan;
  more.grad_accum = 128;
  EXPECT_LT(step_s(more), 2 * base);
  Plan overlapped = plan;
  overlapped.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  EXPECT_LT(step_s(overlapped), base);
}

}  // namespace
}  // namespace shardwright::sim
