// SPDX-License-Identifier: Apache-2.0
// Predictions of plans that divide the model: parts add up, and software that cannot is named.
#include <gtest/gtest.h>

#include "profiles/profile.h"
#include "sim/core/error.h"
#include "sim/predict.h"

namespace shardwright::sim {
namespace {

Model llama_70b() {
  Model model;
  model.name = "llama-3-70b";
  model.family = "llama";
  model.layers = 80;
  model.hidden = 8192;
  model.heads = 64;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn = 28672;
  model.vocab = 128256;
  model.max_positions = 8192;
  return model;
}

Plan plan_of(std::int64_t gpus, std::int64_t tp, std::int64_t pp, std::int64_t accum) {
  Plan plan;
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.stack = "megatron-core";
  plan.gpus = gpus;
  plan.parallel.tp = tp;
  plan.parallel.pp = pp;
  plan.grad_accum = accum;
  plan.seq_len = 8192;
  plan.recompute = Recompute::kNone;
  return plan;
}

const profiles::Profile& h100() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  return profile;
}

TEST(ParallelStepTest, PartsAddUpToTheStep) {
  const Model model = llama_70b();
  Predictor predictor(model, h100());
  const Prediction p = predictor.predict(plan_of(128, 8, 4, 32));
  ASSERT_EQ(p.stages.size(), 4U);
  for (const StagePrediction& stage : p.stages) {
    EXPECT_NEAR(stage.compute_s + stage.exposed_communication_s + stage.host_s + stage.optimizer_s +
                    stage.bubble_s,
                p.time.iteration_s, 0.02 * p.time.iteration_s);
  }
  EXPECT_GT(p.pipeline.bubble, 0);
  EXPECT_GT(p.sent_bytes[static_cast<std::size_t>(CommGroup::kTensor)], 0);
  EXPECT_GT(p.sent_bytes[static_cast<std::size_t>(CommGroup::kPipeline)], 0);
  EXPECT_EQ(p.sent_bytes[static_cast<std::size_t>(CommGroup::kContext)], 0);
}

TEST(ParallelStepTest, StacksThatCannotAreNamed) {
  const Model model = llama_70b();
  const profiles::Profile native = profiles::load_profile("dgx-h100", "native");
  Plan plan = plan_of(64, 8, 1, 1);
  plan.strategy = Strategy::kYafsdp;
  plan.stack = "native";
  EXPECT_THROW(Predictor(model, native).predict(plan), Error);
}

}  // namespace
}  // namespace shardwright::sim
