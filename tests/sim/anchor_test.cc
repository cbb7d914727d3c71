// SPDX-License-Identifier: Apache-2.0
// Guards the anchor: a measured step moves the profile towards it by the share that published
// series allow, narrows the interval of its model alone, and carries to other sizes.
#include "sim/calibrate/anchor.h"

#include "profiles/uncertainty/uncertainty.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

double half_span(const Prediction& prediction) {
  return std::log(prediction.time.interval_s[1] / prediction.time.interval_s[0]) / 2;
}

struct Anchored : ::testing::Test {
  Model model = shipped("llama-3.1-8b");
  profiles::Profile base = profiles::load_profile("dgx-h100", "torch-compile");
  Plan plan;

  Anchored() {
    plan.strategy = Strategy::kFsdp2;
    plan.gpus = 8;
    plan.seq_len = 8192;
    plan.stack = "torch-compile";
  }
  AnchorFit by(double factor) const {
    return anchor(model, base, plan, predict(model, base, plan).time.iteration_s * factor);
  }
};

TEST_F(Anchored, StepMovesByTheShareThatIsCarried) {
  for (const double factor : {0.85, 0.95, 1.1, 1.25}) {
    const AnchorFit fit = by(factor);
    EXPECT_GT(fit.carried, 0.5);
    EXPECT_LT(fit.carried, 1);
    const double moved = std::log(fit.after.time.iteration_s / fit.before.time.iteration_s);
    EXPECT_NEAR(moved, fit.carried * std::log(factor), 2e-3) << factor;
  }
}

TEST_F(Anchored, ClocksMoveMostOfAStepOfProducts) {
  const AnchorFit fit = by(1.1);
  ASSERT_FALSE(fit.shares.empty());
  EXPECT_EQ(fit.shares.front().first, "cost.gemm.sustained_factor");
  EXPECT_GT(fit.shares.front().second, 0.5);
  const FittedValue& clocks = fit.result.groups.front().values.front();
  EXPECT_LT(clocks.after, clocks.before);
  EXPECT_LE(clocks.low, clocks.after);
  EXPECT_GE(clocks.high, clocks.after);
}

TEST_F(Anchored, ACommunicationBoundStepMovesTheNetworkToo) {
  plan.gpus = 64;
  plan.seq_len = 512;
  const profiles::Profile slow =
      profiles::load_profile("dgx-h100", "torch-compile", {"cluster.nics_per_node=1"});
  const double step = predict(model, slow, plan).time.iteration_s;
  const AnchorFit fit = anchor(model, slow, plan, step * 1.1);
  double of_network = 0;
  for (const auto& [path, share] : fit.shares)
    of_network += path.starts_with("cluster.") || path.starts_with("cost.collectives.") ? share : 0;
  EXPECT_GT(of_network, 0.5);
}

TEST_F(Anchored, OtherSizesFollowAndTheirIntervalNarrows) {
  const AnchorFit fit = by(1.1);
  plan.gpus = 256;
  const Prediction before = predict(model, base, plan);
  const Prediction after = predict(model, fit.result.profile, plan);
  EXPECT_GT(after.time.iteration_s, before.time.iteration_s * 1.04);
  EXPECT_LT(after.time.iteration_s, before.time.iteration_s * 1.1);
  EXPECT_LT(half_span(after), 0.85 * half_span(before));
  EXPECT_TRUE(after.time.anchored);
}

TEST_F(Anchored, AnotherModelIsNotNarrowedAndSaysWhy) {
  const AnchorFit fit = by(1.1);
  const Model other = shipped("llama-3-70b");
  plan.ckpt_layers = 80;
  plan.gpus = 64;
  const Prediction after = predict(other, fit.result.profile, plan);
  EXPECT_FALSE(after.time.anchored);
  EXPECT_GE(half_span(after), half_span(predict(other, base, plan)) - 1e-9);
  ASSERT_FALSE(after.extrapolated.empty());
  EXPECT_NE(after.extrapolated.back().find("anchored by a step of llama-3.1-8b"),
            std::string::npos);
}

TEST_F(Anchored, AnImplausibleStepCarriesNothing) {
  const AnchorFit fit = by(2);
  EXPECT_TRUE(fit.implausible);
  EXPECT_EQ(fit.after.time.iteration_s, fit.before.time.iteration_s);
  EXPECT_FALSE(fit.after.time.anchored);
  EXPECT_THROW(anchor(model, base, plan, 0), Error);
}

TEST_F(Anchored, ModelParallelStepsAreCarriedToo) {
  base = profiles::load_profile("dgx-h100", "megatron-core");
  plan.stack = "megatron-core";
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.parallel.tp = 2;
  plan.parallel.pp = 2;
  plan.grad_accum = 8;
  const AnchorFit fit = by(1.1);
  EXPECT_GT(fit.carried, 0.3);
  const double moved = std::log(fit.after.time.iteration_s / fit.before.time.iteration_s);
  EXPECT_NEAR(moved, fit.carried * std::log(1.1), 2e-3);
  EXPECT_LT(half_span(fit.after), half_span(fit.before));
}

TEST(AnchoredUncertainty, TellsMoreWhereLessIsKnown) {
  const profiles::AnchoredUncertainty& known = profiles::anchored_uncertainty();
  for (const bool model_parallel : {false, true}) {
    double last_share = 0;
    for (const double width : {0.05, 0.08, 0.1, 0.2, 0.5, 1.1}) {
      const double share = known.carried_share(model_parallel, width);
      EXPECT_GE(share, last_share);
      EXPECT_LT(share, 1);
      EXPECT_LE(known.half_width(model_parallel, width), width + 1e-12);
      last_share = share;
    }
    EXPECT_GT(last_share, 0.95);
    EXPECT_LT(known.half_width(model_parallel, 1.1), 0.15);
  }
}

}  // namespace
}  // namespace shardwright::sim
