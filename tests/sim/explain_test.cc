// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/core/base/error.h"

namespace shardwright::sim {
namespace {

Model llama_like(std::int64_t layers) {
  Model model;
  model.name = "llama-like";
  model.layers = layers;
  model.hidden = 8192;
  model.heads = 64;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn = 28672;
  model.vocab = 128256;
  model.max_positions = 8192;
  return model;
}

Plan plan_on(std::int64_t gpus, std::int64_t ckpt_layers) {
  Plan plan;
  plan.gpus = gpus;
  plan.ckpt_layers = ckpt_layers;
  if (ckpt_layers == 0) plan.recompute = Recompute::kNone;
  plan.stack = "hf-eager";
  return plan;
}

const Change* find(const Explanation& explanation, const std::string& what) {
  for (const Change& change : explanation.changes) {
    if (change.what.find(what) != std::string::npos) return &change;
  }
  return nullptr;
}

Explanation explain_on_slow_network(const Plan& plan) {
  Predictor predictor(llama_like(12), profiles::load_profile("a100-80g-4xhdr200", "hf-eager"));
  return explain(predictor, plan);
}

TEST(Explain, ChangesArePredictionsOfTheChangedPlan) {
  const Plan plan = plan_on(256, 4);
  const Explanation explanation = explain_on_slow_network(plan);
  const auto profile = profiles::load_profile("a100-80g-4xhdr200", "hf-eager");
  const Model model = llama_like(12);

  Plan bf16 = plan;
  bf16.reduce_dtype = DType::kBf16;
  const Prediction direct = predict(model, profile, bf16);
  const Change* change = find(explanation, "bf16 gradient reduction");
  ASSERT_NE(change, nullptr);
  EXPECT_EQ(change->iteration_s, direct.time.iteration_s);
  EXPECT_EQ(change->total_bytes, direct.memory.total_bytes);
  EXPECT_NEAR(change->gain, direct.time.tokens_per_s / explanation.base.time.tokens_per_s - 1,
              1e-12);

  auto faster = profile;
  faster.cluster.nic_bytes_per_s *= 2;
  change = find(explanation, "twice the NIC bandwidth");
  ASSERT_NE(change, nullptr);
  EXPECT_EQ(change->kind, ChangeKind::kHardware);
  EXPECT_EQ(change->iteration_s, predict(model, faster, plan).time.iteration_s);
  EXPECT_EQ(explanation.base.time.iteration_s, predict(model, profile, plan).time.iteration_s);
}

// 8192-wide layers over 100 GB/s a node: backward waits for its reductions, and bandwidth helps.
TEST(Explain, FindsCommunicationAndWhatHelpsAgainstIt) {
  const Explanation explanation = explain_on_slow_network(plan_on(256, 0));
  EXPECT_EQ(explanation.parts[static_cast<std::size_t>(StepPart::kBackward)].bound(),
            Bound::kCommunication);
  EXPECT_GT(find(explanation, "twice the NIC bandwidth")->gain, 0.1);
  EXPECT_GT(find(explanation, "bf16 gradient reduction")->gain, 0.1);
  EXPECT_LT(find(explanation, "GEMMs")->gain, find(explanation, "twice the NIC bandwidth")->gain);
}

TEST(Explain, OffersNoSoftwareThatNobodyCanInstall) {
  Predictor predictor(llama_like(32), profiles::load_profile("dgx-h100", "megatron-core"));
  Plan plan = plan_on(64, 0);
  plan.stack = "megatron-core";
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.parallel.tp = 2;
  const Explanation explanation = explain(predictor, plan);
  EXPECT_NE(find(explanation, "the framework maxtext"), nullptr);
  EXPECT_EQ(find(explanation, "the framework paxml"), nullptr);
  EXPECT_EQ(find(explanation, "the framework megatron-lm-2021"), nullptr);
}

TEST(Explain, RanksByTokensPerSecond) {
  const Explanation explanation = explain_on_slow_network(plan_on(64, 4));
  EXPECT_GT(explanation.changes.size(), 10U);
  EXPECT_TRUE(std::is_sorted(explanation.changes.begin(), explanation.changes.end(),
                             [](const Change& a, const Change& b) { return a.gain > b.gain; }));
  const Change* larger = find(explanation, "twice the micro-batch");
  EXPECT_EQ(larger->also, "doubles the batch");
  EXPECT_GT(larger->iteration_s, explanation.base.time.iteration_s);
}

TEST(Explain, KeepsTheBatchWhereMicroStepsCanBeHalved) {
  Plan plan = plan_on(64, 0);
  plan.grad_accum = 4;
  plan.micro_batch = 2;
  const Explanation explanation = explain_on_slow_network(plan);
  EXPECT_EQ(find(explanation, "twice the micro-batch")->also, "the same batch");
  EXPECT_EQ(find(explanation, "half the micro-batch")->also, "the same batch");
}

// The fewest checkpointed layers that fit: one less does not.
TEST(Explain, FindsTheFewestCheckpointedLayersThatFit) {
  Predictor predictor(llama_like(40), profiles::load_profile("a100-80g-4xhdr200", "hf-eager"));
  Plan plan = plan_on(256, 0);
  plan.seq_len = 4096;
  const auto fits = [&] { return predictor.predict(plan).memory.verdict == MemoryVerdict::kFits; };
  ASSERT_FALSE(fits());
  const Explanation explanation = explain(predictor, plan);
  const Change* change = find(explanation, "layers checkpointed instead of 0");
  ASSERT_NE(change, nullptr);
  EXPECT_TRUE(change->fits);
  const std::int64_t fewest = std::stoll(change->what);
  ASSERT_GT(fewest, 1);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = fewest;
  EXPECT_TRUE(fits());
  plan.ckpt_layers = fewest - 1;
  EXPECT_FALSE(fits());
}

TEST(Explain, TriesTheStrategiesThatTuneConsiders) {
  const Plan plan = plan_on(64, 4);
  const Explanation explanation = explain_on_slow_network(plan);
  const auto tried = [&](Strategy strategy) {
    const std::string what = "the strategy " + std::string(name_of(strategy));
    return std::any_of(explanation.changes.begin(), explanation.changes.end(),
                       [&](const Change& change) { return change.what == what; });
  };
  int others = 0;
  for (const Strategy strategy : all_strategies()) {
    const StrategyInfo& info = info_of(strategy);
    const bool expected = info.tuned && !info.one_rank && strategy != plan.strategy;
    EXPECT_EQ(tried(strategy), expected) << name_of(strategy);
    others += expected;
  }
  EXPECT_GT(others, 5);
}

TEST(Explain, SaysWhichSoftwareNeverRan) {
  const Explanation explanation = explain_on_slow_network(plan_on(64, 4));
  const auto also = [&](const char* stack) { return find(explanation, stack)->also; };
  ASSERT_NE(find(explanation, "the framework native"), nullptr);
  ASSERT_NE(find(explanation, "the framework mpt-eager"), nullptr);
  EXPECT_EQ(also("the framework native"), "never run on a GPU");
  EXPECT_EQ(also("the framework mpt-eager"), "");
}

TEST(Explain, OffersNoNetworkToOneGpu) {
  Plan plan = plan_on(1, 0);
  plan.strategy = Strategy::kSingle;
  const Explanation explanation = explain_on_slow_network(plan);
  for (const char* what : {"NIC", "between GPUs", "reduction", "the strategy"}) {
    EXPECT_EQ(find(explanation, what), nullptr) << what;
  }
  EXPECT_NE(find(explanation, "GEMMs"), nullptr);
}

TEST(Explain, RefusesAPlanThatCannotBePredicted) {
  EXPECT_THROW(explain_on_slow_network(plan_on(60, 0)), Error);
}

}  // namespace
}  // namespace shardwright::sim
