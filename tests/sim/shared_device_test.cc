// SPDX-License-Identifier: Apache-2.0
// Guards the physics of ranks that share a device, and of a device that runs operations in order.

#include "sim/bounds/bounds.h"
#include "sim/cost/collectives.h"
#include "sim/cost/cost.h"
#include "sim/cost/op_cost.h"
#include "sim/engine/engine.h"
#include "tests/sim/prediction.h"
#include "tests/support/parameter_name.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using profiles::load_profile;
using profiles::Profile;

Work matrix_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  Work work;
  work.kind = WorkKind::kGemm;
  work.m = m;
  work.n = n;
  work.k = k;
  work.dtype_bytes = 4;
  return work;
}

double seconds(const Profile& profile, const Work& work, std::int64_t sharers) {
  return kernel_time_s(kernel_costs(profile, sharers), work);
}

TEST(SharedDeviceTest, RanksAreSpreadOverTheDevicesOfANode) {
  Cluster cluster;
  cluster.gpus_per_node = 8;
  EXPECT_EQ(cluster.ranks_per_device(64), 1);
  cluster.devices_per_node = 2;
  EXPECT_EQ(cluster.ranks_per_device(1), 1);
  EXPECT_EQ(cluster.ranks_per_device(2), 1);
  EXPECT_EQ(cluster.ranks_per_device(3), 2);
  EXPECT_EQ(cluster.ranks_per_device(64), 4);
  cluster.gpu.memory_bytes = 100;
  EXPECT_EQ(cluster.memory_bytes_per_rank(64), 25);
}

TEST(SharedDeviceTest, EachRankHasItsPartOfTheRates) {
  for (const char* name : {"host", "dgx-h100"}) {
    const Profile profile = load_profile(name, "native");
    const Work large = matrix_product(4096, 8192, 4096);
    const double alone = seconds(profile, large, 1);
    for (const int ranks : {2, 4, 16}) {
      EXPECT_NEAR(seconds(profile, large, ranks) / alone, ranks, 0.1 * ranks) << name;
    }
    Work copy;
    copy.kind = WorkKind::kMemory;
    copy.bytes = std::int64_t{1} << 32;
    EXPECT_NEAR(seconds(profile, copy, 4) / seconds(profile, copy, 1), 4, 0.05) << name;
  }
}

TEST(SharedDeviceTest, WhatStartsAKernelIsStretchedOnlyWhenRanksTakeTurnsOnCores) {
  const Profile host = load_profile("host", "native", {"gpu.sm_count=4"});
  EXPECT_EQ(turns(host.cluster.gpu, 1), 1);
  EXPECT_EQ(turns(host.cluster.gpu, 4), 1);
  EXPECT_EQ(turns(host.cluster.gpu, 6), 1.5);
  EXPECT_EQ(kernel_costs(host, 4).gemm.t0_s, host.cost.gemm.values.t0_s);
  EXPECT_EQ(kernel_costs(host, 8).gemm.t0_s, 2 * host.cost.gemm.values.t0_s);
}

TEST(SharedDeviceTest, CollectivesAreCopiesInMemory) {
  Profile profile = load_profile("dgx-h100", "native", {"cluster.devices_per_node=1"});
  profiles::CollectiveParams params = profile.cost.collectives.values;
  EXPECT_EQ(in_device_memory(profile, 4, params), 4);
  const CollectiveGroup group{.ranks = 4, .ranks_per_node = 4, .copies_take_turns = 4};
  const double bytes = 1e9;
  const CollectiveCost gather = collective_cost(params, {}, group, Collective::kAllGather, bytes);
  EXPECT_EQ(gather.algorithm, Algorithm::kCopies);
  EXPECT_EQ(gather.channels, 0);
  // Four ranks copy three quarters each, reading and writing.
  const double bandwidth =
      profile.cluster.gpu.hbm_bytes_per_s * profile.cost.memory.values.stream_efficiency;
  EXPECT_NEAR(gather.time_s, 4 * 0.75 * bytes * 2 / bandwidth, 1e-4);
  EXPECT_GT(collective_cost(params, {}, group, Collective::kReduceScatter, bytes).time_s,
            gather.time_s);
  EXPECT_NEAR(
      collective_cost(params, {}, group, Collective::kAllReduce, bytes).time_s / gather.time_s, 2,
      0.3);
}

class InOrderTest : public ::testing::TestWithParam<Strategy> {};

TEST_P(InOrderTest, AStepIsTheSumOfItsOperations) {
  const Model model = shardwright::testing::tiny_llama();
  const Plan plan =
      shardwright::testing::tiny_plan(GetParam(), GetParam() == Strategy::kSingle ? 1 : 2, 3);
  const Profile host = load_profile("host", "native", {"gpu.sm_count=2"});
  Predictor predictor(model, host);
  Timeline timeline;
  PredictOptions options;
  options.timeline = &timeline;
  const Prediction traced = predictor.predict(plan, options);
  // Nothing runs beside anything else, and every stream's track is kept.
  Nanoseconds end = 0, sum = 0;
  for (const Span& span : not_empty(timeline.spans)) {
    EXPECT_GE(span.begin_ns, end);
    end = span.end_ns;
    sum += span.end_ns - span.begin_ns;
  }
  CostModel costs(host);
  std::vector<OpCost> op_costs;
  costs.cost(predictor.program().stages.front(), op_costs);
  Nanoseconds all = 0;
  for_each_op(predictor.program().stages.front(), [&](const OpInstance& at, const Op&) {
    EXPECT_EQ(op_costs[at.op].contended_ns, op_costs[at.op].alone_ns);
    all += op_costs[at.op].alone_ns + op_costs[at.op].host_ns;
  });
  EXPECT_NEAR(traced.time.iteration_s, static_cast<double>(all) * 1e-9, 1e-9);
  EXPECT_NEAR(traced.time.iteration_s - traced.time.host_s, static_cast<double>(sum) * 1e-9, 1e-9);
  // Skipping repeated layers changes nothing.
  EXPECT_EQ(predictor.predict(plan).time.iteration_s, traced.time.iteration_s);
  // And the search's bound still is one.
  Plan family = plan;
  family.recompute = Recompute::kFull;
  const std::vector<double> least_s = predictor.bounds().least_s_of_family(family);
  ASSERT_EQ(least_s.size(), static_cast<std::size_t>(model.layers) + 1);
  for (std::size_t k = 0; k < least_s.size(); ++k) {
    family.ckpt_layers = static_cast<std::int64_t>(k);
    EXPECT_LE(least_s[k], predictor.predict(family).time.iteration_s * (1 + 1e-9));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, InOrderTest,
                         ::testing::Values(Strategy::kSingle, Strategy::kDdp, Strategy::kZero1,
                                           Strategy::kFsdp2, Strategy::kYafsdp),
                         parameter_name);

TEST(SharedDeviceTest, MoreRanksOnTheSameCoresGiveNoMoreThroughput) {
  const Model model = shardwright::testing::tiny_llama();
  const Profile host = load_profile("host", "native", {"gpu.sm_count=2"});
  const auto tokens_per_s = [&](std::int64_t ranks) {
    Plan plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, ranks);
    plan.seq_len = 64;
    plan.micro_batch = 8;
    return predict(model, host, plan).time.tokens_per_s;
  };
  EXPECT_LT(tokens_per_s(4), 1.02 * tokens_per_s(2));
  EXPECT_GT(tokens_per_s(4), 0.5 * tokens_per_s(2));
}

// Stages of which each has a core wait for one another as on devices of their own; those that take
// turns have no times of their own.
TEST(SharedDeviceTest, StagesOfAPipelineHaveACoreEach) {
  const Model model = shardwright::testing::tiny_llama();
  Plan plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, 2, 4);
  plan.seq_len = 64;
  plan.parallel.pp = 2;
  const Prediction stages =
      predict(model, load_profile("host", "native", {"gpu.sm_count=2"}), plan);
  EXPECT_GT(stages.pipeline.bubble, 0.1);
  EXPECT_LT(stages.pipeline.bubble, 0.4);
  Plan together = plan;
  together.parallel.pp = 1;
  const Profile host = load_profile("host", "native", {"gpu.sm_count=2"});
  EXPECT_LT(stages.time.iteration_s, 1.1 * predict(model, host, together).time.iteration_s);
  EXPECT_EQ(shardwright::testing::refusal_of([&] {
              plan.gpus = 4;
              predict(model, host, plan);
            }),
            "pp is 2, but 4 ranks take turns on the 2 cores of cluster host, expected at most one "
            "rank a core (gpu.sm_count), or a cluster such as cpu-cores");
}

TEST(SharedDeviceTest, ACoreReadsWhatAProductAddsTo) {
  const KernelCosts core = kernel_costs(load_profile("cpu-cores", "native"));
  Work product = matrix_product(352, 128, 1024);
  const double alone = kernel_time_s(core, product);
  product.bytes = 4 * 1024 * (352 + 128) + 4 * 352 * 128;  // operands and result, once each
  EXPECT_EQ(with_result_traffic(core, product, alone), alone);
  product.bytes += 4 * 352 * 128;
  const double hbm = core.rates.hbm_bytes_per_s * core.rates.hbm_efficiency;
  EXPECT_NEAR(with_result_traffic(core, product, alone) - alone, 4 * 352 * 128 / hbm, 1e-12);
}

TEST(SharedDeviceTest, ProductsOfAProcessorAreNotPadded) {
  const Profile host = load_profile("host", "native", {"gpu.sm_count=1"});
  const KernelCosts costs = kernel_costs(host);
  const double whole = kernel_time_s(costs, matrix_product(512, 384, 256)) - costs.gemm.t0_s;
  const double part = kernel_time_s(costs, matrix_product(512, 352, 256)) - costs.gemm.t0_s;
  EXPECT_NEAR(part / whole, 352.0 / 384, 0.02);
}

}  // namespace
}  // namespace shardwright::sim
