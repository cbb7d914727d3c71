// SPDX-License-Identifier: Apache-2.0
// Predictions of model-parallel plans: parts add up, and software that cannot is named.

#include "profiles/uncertainty/uncertainty.h"
#include "tests/sim/model_parallel_plans.h"

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
  EXPECT_GT(p.sent[static_cast<std::size_t>(CommGroup::kTensor)].total(), 0);
  EXPECT_GT(p.sent[static_cast<std::size_t>(CommGroup::kPipeline)].total(), 0);
  EXPECT_EQ(p.sent[static_cast<std::size_t>(CommGroup::kContext)].total(), 0);
}

TEST(ParallelStepTest, HybridShardingIsWithinANodeUnlessToldOtherwise) {
  const Model model = llama_70b();
  Predictor predictor(model, h100());
  Plan plan = plan_of(128, 2, 1, 1);
  plan.strategy = Strategy::kHsdp;
  const double within_node_s = predictor.predict(plan).time.iteration_s;
  plan.shard_group = 4;  // the data-parallel ranks of a node of 8
  EXPECT_EQ(predictor.predict(plan).time.iteration_s, within_node_s);
  plan.shard_group = 64;
  EXPECT_NE(predictor.predict(plan).time.iteration_s, within_node_s);
}

TEST(ParallelStepTest, AFrameworkRefusesStrategiesThatItLacks) {
  const Model model = llama_70b();
  const auto predicted = [&](const char* stack, Strategy strategy) {
    Plan plan = plan_of(128, 2, 2, 8);
    plan.stack = stack;
    plan.strategy = strategy;
    return predict(model, profiles::load_profile("dgx-h100", stack), plan).time.iteration_s;
  };
  for (const Strategy other :
       {Strategy::kYafsdp, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp2Hpz}) {
    EXPECT_THROW(predicted("megatron-core", other), Error) << name_of(other);
    EXPECT_GT(predicted("torch-compile", other), 0) << name_of(other);
  }
  EXPECT_GT(predicted("megatron-core", Strategy::kMegatronFsdp), 0);
}

TEST(ParallelStepTest, StacksThatCannotAreNamed) {
  const Model model = llama_70b();
  const profiles::Profile native = profiles::load_profile("dgx-h100", "native");
  Plan plan = plan_of(64, 8, 1, 1);
  plan.strategy = Strategy::kYafsdp;
  plan.stack = "native";
  EXPECT_GT(Predictor(model, native).predict(plan).time.iteration_s, 0);
  plan.parallel.cp = 2;
  EXPECT_THROW(Predictor(model, native).predict(plan), Error);
}

TEST(ParallelStepTest, SoftwareWithoutTensorParallelismMayHaveOtherPrecisions) {
  Model model = llama_70b();
  model.layers = 8;
  const profiles::Profile native = profiles::load_profile("dgx-h100", "native");
  Plan plan = plan_of(8, 1, 1, 1);
  plan.strategy = Strategy::kZero1;
  plan.stack = "native";
  const double bf16 = Predictor(model, native).predict(plan).time.iteration_s;
  plan.numerics.precision = Precision::kFp8;
  const double fp8 = Predictor(model, native).predict(plan).time.iteration_s;
  EXPECT_LT(fp8, 0.9 * bf16);
  EXPECT_GT(fp8, 0.5 * bf16);
  plan.parallel.tp = 2;
  EXPECT_THROW(Predictor(model, native).predict(plan), Error);
  const profiles::Profile other = profiles::load_profile("dgx-h100", "hf-eager");
  plan.parallel.tp = 1;
  plan.stack = "hf-eager";
  EXPECT_THROW(Predictor(model, other).predict(plan), Error);
}

TEST(ParallelStepTest, MemoryOfModelParallelPlansHasAWidthOfItsOwn) {
  const double width = profiles::model_parallel_uncertainty().memory_half_width;
  ASSERT_GT(width, 0);
  const Prediction p = predict(llama_70b(), h100(), plan_of(64, 8, 4, 64));
  const auto reserved = static_cast<double>(p.memory.peak_reserved_bytes);
  const auto runtime = static_cast<double>(p.memory.runtime_bytes);
  EXPECT_NEAR(static_cast<double>(p.memory.interval_bytes[1]), reserved * std::exp(width) + runtime,
              2);
}

TEST(ParallelStepTest, IntervalsAreMadeOfWhatIsNewAboutTheRun) {
  const auto span = [](const Prediction& p) {
    return std::log(p.time.interval_s[1] / p.time.interval_s[0]) / 2;
  };
  const Prediction p = predict(llama_70b(), h100(), plan_of(64, 4, 4, 64));
  EXPECT_NEAR(span(p), profiles::total_of(p.time.added_half_widths), 1e-9);
  EXPECT_NEAR(span(p), profiles::novelty_widths().model_parallel, 1e-9);  // nothing else is new
  Plan plan = plan_of(64, 4, 4, 64);
  plan.numerics.lora = 16;
  const Prediction adapters = predict(llama_70b(), h100(), plan);
  EXPECT_GT(span(adapters), 1.2 * span(p));
  EXPECT_GT(at(adapters.time.added_half_widths, profiles::WidthAxis::kFramework), 0);
}

// What somebody needs less than predicted is known of published settings only.
TEST(ParallelStepTest, MemoryOfStrangersMayBeLess) {
  PredictOptions listed;
  listed.source = "YaFSDP README";
  const Prediction stranger = predict(llama_70b(), h100(), plan_of(64, 8, 4, 64));
  const Prediction of_listed = predict(llama_70b(), h100(), plan_of(64, 8, 4, 64), listed);
  EXPECT_LT(stranger.memory.interval_bytes[0], of_listed.memory.interval_bytes[0]);
  EXPECT_EQ(stranger.memory.interval_bytes[1], of_listed.memory.interval_bytes[1]);
}

}  // namespace
}  // namespace shardwright::sim
