// SPDX-License-Identifier: Apache-2.0
// Predictions of plans that divide the model: parts add up, and software that cannot is named.
#include <gtest/gtest.h>

#include "sim/core/error.h"
#include "sim/predict.h"
#include "tests/sim/divided_plans.h"

namespace shardwright::sim {
namespace {

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
