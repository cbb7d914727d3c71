// SPDX-License-Identifier: Apache-2.0

#include "profiles/cluster_file.h"
#include "sim/uncertainty/intervals.h"
#include "tests/sim/prediction.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

class Extrapolation : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.gpu.id = "a100-80g";
    cluster_.gpus_per_node = 8;
    cluster_.nics_per_node = 4;
    cluster_.nic_bytes_per_s = 25e9;
    plan_.strategy = Strategy::kFsdp1;
    plan_.gpus = 64;
    plan_.seq_len = 2048;
    add(plan_);
    Plan longer = plan_;
    longer.seq_len = 65536;
    longer.gpus = 8;
    longer.strategy = Strategy::kYafsdp;
    longer.ckpt_layers = 2;
    add(longer);
  }
  void add(const Plan& plan) { add_run(seen_, model_, cluster_, "hf-eager", plan, "somebody"); }
  std::vector<std::string> of(const Plan& plan, const std::string& stack = "hf-eager") const {
    profiles::Profile profile;
    profile.uncertainty = seen_;
    profile.cluster = cluster_;
    profile.stack.family = stack;
    return extrapolations(profile, model_, plan);
  }

  Model model_ = shardwright::testing::tiny_llama();
  Cluster cluster_;
  Plan plan_;
  profiles::Uncertainty seen_;
};

TEST_F(Extrapolation, WhatWasRunIsInside) {
  EXPECT_THAT(of(plan_), IsEmpty());
  Plan between = plan_;
  between.seq_len = 4096;
  between.gpus = 32;
  between.ckpt_layers = 1;
  EXPECT_THAT(of(between), IsEmpty());
}

TEST_F(Extrapolation, NamesNumbersOutsideWithTheNearestFitted) {
  Plan plan = plan_;
  plan.seq_len = 131072;
  EXPECT_THAT(of(plan),
              ElementsAre("seq_len 131072 is above the largest fitted, 65536",
                          "tokens_per_micro_step 131072 is above the largest fitted, 65536"));
  plan.seq_len = 1024;
  plan.gpus = 4;
  plan.micro_batch = 2;
  EXPECT_THAT(of(plan), ElementsAre("seq_len 1024 is below the smallest fitted, 2048",
                                    "gpus 4 is below the smallest fitted, 8"));
}

TEST_F(Extrapolation, NamesWordsThatNoRunHas) {
  Plan plan = plan_;
  plan.strategy = Strategy::kDdp;
  plan.attention = AttentionKind::kEager;
  EXPECT_THAT(of(plan),
              ElementsAre("strategy ddp: no published run", "attention eager: no published run"));
  EXPECT_THAT(of(plan_, "my-stack"), ElementsAre("stack my-stack: no published run"));
}

TEST_F(Extrapolation, NamesPairsOnlyWhenBothPartsAreKnown) {
  cluster_.gpu.id = "h100-80g";
  EXPECT_THAT(of(plan_), ElementsAre("gpu h100-80g: no training run in the ledger"));
  add_run(seen_, model_, cluster_, "native", plan_, "somebody");
  EXPECT_THAT(of(plan_), ElementsAre("framework hf-eager with gpu h100-80g: no published run"));
  EXPECT_FALSE(seen_on_gpu(seen_, "hf-eager", "h100-80g"));
  EXPECT_TRUE(seen_on_gpu(seen_, "native", "h100-80g"));
}

TEST_F(Extrapolation, TheNetworkMattersOnlyBetweenNodes) {
  cluster_.nic_bytes_per_s = 50e9;
  EXPECT_THAT(of(plan_),
              ElementsAre("network_gbps_per_node 1600 is above the largest fitted, 800"));
  Plan one_node = plan_;
  one_node.gpus = 8;
  EXPECT_THAT(of(one_node), IsEmpty());
}

TEST_F(Extrapolation, NothingIsKnownWithoutRuns) {
  plan_.seq_len = 1 << 20;
  EXPECT_THAT(extrapolations({}, model_, plan_), IsEmpty());
}

// The whole way: the shipped residuals reach a prediction.
// What nobody measured is known less well than what somebody did, in this order.
TEST(ExtrapolationOfPredictions, IntervalsWidenWithWhatIsNew) {
  const auto width = [](const std::string& gpu, Offload offload, const std::string& stack) {
    Plan plan;
    plan.strategy = Strategy::kSingle;
    plan.gpus = 1;
    plan.offload = offload;
    plan.stack = stack;
    Model model = shardwright::testing::tiny_llama();
    model.name = "Qwen2.5-1.5B";
    const profiles::Profile profile = profiles::make_profile(
        profiles::make_cluster(gpu, 8, std::nullopt), profiles::load_stack(stack));
    PredictOptions options;
    options.source = "llmq";
    Prediction prediction = predict(model, profile, plan, options);
    prediction.time.iteration_s = 1;  // no host could be in its way
    prediction.other_tie_order_s = 0;
    prediction.extrapolated.clear();
    if (offload != Offload::kNone) prediction.extrapolated = {"offload"};
    return published_half_width(prediction, model, profile, options.source);
  };
  const double own = width("rtx-pro-6000", Offload::kNone, "native");
  const double new_knob = width("rtx-pro-6000", Offload::kOptimizer, "native");
  const double new_gpu = width("rtx-5060ti", Offload::kNone, "native");
  const double new_design = width("mi300x", Offload::kOptimizer, "native");
  EXPECT_LT(own, new_knob);
  EXPECT_LT(new_knob, new_gpu);
  EXPECT_LT(new_gpu, new_design);
  // Other software on the same machine is another cell.
  EXPECT_LT(own, width("rtx-pro-6000", Offload::kNone, "torch-compile"));
}

TEST(ExtrapolationOfPredictions, IntervalsWidenWithDoublingsByKindOfNetwork) {
  const auto width = [](std::int64_t gpus, const std::string& network, const std::string& source) {
    Plan plan;
    plan.strategy = Strategy::kFsdp2;
    plan.gpus = gpus;
    plan.stack = "torch-compile";
    profiles::Profile profile = profiles::load_profile("dgx-h100", "torch-compile");
    profile.cluster.network = network;
    Prediction prediction;
    prediction.plan = plan;
    prediction.time.iteration_s = 1;
    return published_half_width(prediction, shardwright::testing::tiny_llama(), profile, source);
  };
  const auto beyond_node = [&](std::int64_t gpus, const std::string& network) {
    const double all = width(gpus, network, ""), in_node = width(8, network, "");
    return std::sqrt(all * all - in_node * in_node);
  };
  EXPECT_GT(beyond_node(16, "infiniband"), 0.002);
  EXPECT_NEAR(beyond_node(1024, "infiniband") / beyond_node(16, "infiniband"), 7, 1e-5);
  EXPECT_NEAR(beyond_node(64, "efa") / beyond_node(64, "infiniband"), std::sqrt(2.0), 1e-3);
  EXPECT_EQ(beyond_node(64, ""), beyond_node(64, "efa"));
  // Whose runs are published has a loss of scale of its own.
  EXPECT_EQ(width(8, "efa", "torchtitan commit logs"), width(64, "efa", "torchtitan commit logs"));
}

TEST(ExtrapolationOfPredictions, NamesAGpuThatNobodyTrainedOn) {
  const profiles::Profile profile = profiles::load_profile("mi300x-8x400", "torch-eager");
  Plan plan;
  plan.stack = "torch-eager";
  plan.strategy = Strategy::kFsdp2;
  plan.gpus = 8;
  const Prediction p = predict(shardwright::testing::tiny_llama(), profile, plan);
  EXPECT_THAT(p.extrapolated, ::testing::Contains("gpu mi300x: no training run in the ledger"));
  EXPECT_LT(p.time.interval_s[0], p.time.iteration_s);
  EXPECT_GT(p.time.interval_s[1], p.time.iteration_s);
  EXPECT_EQ(p.time.interval_level, 0.9);
}

}  // namespace
}  // namespace shardwright::sim
