// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/run_cost.h"

#include <gtest/gtest.h>

#include <cmath>

#include "profiles/data_dir.h"
#include "sim/core/hf/config.h"
#include "tests/tuner/models.h"

namespace shardwright::tuner {
namespace {

sim::Prediction step_of(std::int64_t gpus, double tokens_per_s) {
  sim::Prediction prediction;
  prediction.plan.gpus = gpus;
  prediction.plan.seq_len = 4096;
  prediction.time.tokens_per_s = tokens_per_s;
  prediction.time.iteration_s = 4096.0 * static_cast<double>(gpus) / tokens_per_s;
  prediction.time.interval_s[0] = prediction.time.iteration_s / 1.1;
  prediction.time.interval_s[1] = prediction.time.iteration_s * 1.1;
  return prediction;
}

RunConditions conditions_of(double factor, double half_width) {
  RunConditions conditions;
  conditions.tokens = 8.64e11;
  conditions.mtbf_gpu_hours = 32000;
  conditions.restart_s = 900;
  conditions.checkpoint_s = 30;
  conditions.production.log_factor = std::log(factor);
  conditions.production.half_widths = {half_width, half_width};
  conditions.production.step_half_width = std::log(1.1);
  conditions.production.usual_gpus = 64;
  conditions.production.parameters_range = {1e6, 1e12};
  conditions.production.peak_range = {1e13, 1e16};
  return conditions;
}

// 8.64e11 tokens at 1e6 a second are 10 days; on the usual number of GPUs failures are those of the
// published trainings.
TEST(RunCost, DaysDollarsAndIntervalsByHand) {
  const profiles::Price price{2, {1, 2}, "", {}};
  const RunCost cost =
      run_cost(model_of("llama-3-8b"), step_of(64, 1e6), 989.4e12, conditions_of(1.5, 0.5), price);
  EXPECT_NEAR(cost.ideal_days, 10, 1e-9);
  EXPECT_NEAR(cost.days, 15, 1e-9);
  EXPECT_NEAR(cost.scale_factor, 1, 1e-12);
  EXPECT_NEAR(cost.days_interval[1], 15 * std::exp(0.5), 1e-9);
  EXPECT_NEAR(cost.gpu_hours, 15 * 24 * 64, 1e-6);
  EXPECT_NEAR(*cost.usd, 15 * 24 * 64 * 2, 1e-6);
  EXPECT_NEAR(*cost.ideal_usd, 10 * 24 * 64 * 2, 1e-6);
  // Offers ask half the price at best, none asks more: only the low end moves.
  EXPECT_NEAR((*cost.usd_interval)[1], *cost.usd * std::exp(0.5), 1e-6);
  EXPECT_NEAR((*cost.usd_interval)[0], *cost.usd * std::exp(-std::hypot(0.5, std::log(2.0))), 1e-6);
  EXPECT_NEAR(cost.whole_mfu, 6 * 8.030e9 * 8.64e11 / (15 * 24 * 64 * 3600.0 * 989.4e12), 1e-3);
}

TEST(RunCost, MoreGpusLoseMoreToFailures) {
  const Model model = model_of("llama-3-8b");
  const RunConditions conditions = conditions_of(1.5, 0.5);
  const RunCost few = run_cost(model, step_of(64, 1e6), 989.4e12, conditions, {});
  const RunCost many = run_cost(model, step_of(16384, 256e6), 989.4e12, conditions, {});
  EXPECT_GT(many.gpu_hours, 1.03 * few.gpu_hours);
  EXPECT_NEAR(many.scale_factor, few.goodput.share / many.goodput.share, 1e-12);
  EXPECT_FALSE(many.usd.has_value());
  EXPECT_FALSE(many.usd_interval.has_value());
}

// What operators report moves the ends only where the GPUs are more than published trainings had.
TEST(RunCost, RatesOfFailuresThatOperatorsReportAreInTheInterval) {
  const Model model = model_of("llama-3-8b");
  RunConditions conditions = conditions_of(1.5, 0.5);
  conditions.mtbf_range = {8000, 80000};
  const RunCost few = run_cost(model, step_of(64, 1e6), 989.4e12, conditions, {});
  EXPECT_NEAR(few.days_interval[1] / few.days, std::exp(0.5), 1e-9);
  const RunCost many = run_cost(model, step_of(16384, 256e6), 989.4e12, conditions, {});
  const auto share = [](double mtbf_gpu_hours, double gpus) {
    const double mtbf_s = mtbf_gpu_hours * 3600 / gpus;
    return goodput_at(daly_interval_s(30, mtbf_s), 30, 900, mtbf_s);
  };
  const auto scale = [&](double mtbf) { return share(mtbf, 64) / share(mtbf, 16384); };
  EXPECT_NEAR(many.days_interval[1] / many.days,
              std::exp(std::hypot(0.5, std::log(scale(8000) / scale(32000)))), 1e-9);
  EXPECT_NEAR(many.days_interval[0] / many.days,
              std::exp(-std::hypot(0.5, std::log(scale(80000) / scale(32000)))), 1e-9);
}

// However often its machines fail, no large training reports that less than this was useful.
TEST(RunCost, TheLeastUsefulShareThatIsReportedBoundsTheInterval) {
  RunConditions conditions = conditions_of(1.5, 0.5);
  conditions.mtbf_range = {8000, 80000};
  const auto ratio = [&](double least) {
    conditions.least_useful_share = least;
    const RunCost cost =
        run_cost(model_of("llama-3-8b"), step_of(16384, 256e6), 989.4e12, conditions, {});
    EXPECT_GT(cost.goodput.share, 0.8);
    return std::make_pair(std::log(cost.days_interval[1] / cost.days), cost.goodput.share);
  };
  const auto [bounded, share] = ratio(0.77);
  EXPECT_NEAR(bounded, std::hypot(0.5, std::log(share / 0.77)), 1e-9);
  EXPECT_GT(ratio(0).first, bounded);
  EXPECT_NEAR(ratio(0.99).first, 0.5, 1e-9);
}

TEST(RunCost, WithoutAFittedFactorOnlyFailuresAreAdded) {
  RunConditions conditions = conditions_of(1, 0);
  const RunCost cost = run_cost(model_of("llama-3-8b"), step_of(64, 1e6), 989.4e12, conditions, {});
  EXPECT_NEAR(cost.days, 10 / cost.goodput.share, 1e-9);
  EXPECT_NEAR(cost.days_interval[1] / cost.days, 1.1, 1e-9);
}

// At the critical batch a run needs twice the tokens of one with tiny steps, at half of it 1.5
// times: 4/3 from the one to the other.
TEST(RunCost, StepsBeyondThoseOfPublishedTrainingsNeedMoreTokens) {
  EXPECT_NEAR(tokens_factor(1e6, 0.5e6, 1e6), 2 / 1.5, 1e-12);
  EXPECT_EQ(tokens_factor(0.1e6, 0.5e6, 1e6), 1);
  EXPECT_EQ(tokens_factor(1e6, 0.5e6, 0), 1);
  RunConditions conditions = conditions_of(1.5, 0.5);
  conditions.critical_tokens = 64 * 4096;
  conditions.free_tokens = 32 * 4096;
  const RunCost cost = run_cost(model_of("llama-3-8b"), step_of(64, 1e6), 989.4e12, conditions, {});
  EXPECT_NEAR(cost.days, 15 * 2 / 1.5, 1e-9);
  EXPECT_NEAR(cost.ideal_days, 10, 1e-9);
}

// 45.5 days with 27.8 to 76.1 at 90 %: sigma is log(76.1 / 45.5) / 1.645 = 0.3126 on the far side,
// so 60 days are 0.885 of it away, which 18.8 % exceed.
TEST(RunCost, TheChanceToMissIsThatOfTheInterval) {
  EXPECT_NEAR(probability_above(60, 45.5, {27.8, 76.1}, 0.9), 0.188, 0.001);
  EXPECT_NEAR(probability_above(45.5, 45.5, {27.8, 76.1}, 0.9), 0.5, 1e-12);
  EXPECT_NEAR(probability_above(76.1, 45.5, {27.8, 76.1}, 0.9), 0.05, 1e-6);
  EXPECT_NEAR(probability_above(27.8, 45.5, {27.8, 76.1}, 0.9), 0.95, 1e-6);
  EXPECT_EQ(probability_above(10, 45.5, {45.5, 45.5}, 0.9), 1);
}

// 12,768 GPUs would write 847 GB in half a second, 1.6 TB/s, which nobody sells; and a checkpoint
// every minute and a half is nobody's practice.
TEST(RunCost, StorageIsThatWhichIsSoldAndCheckpointsAreMinutesApart) {
  const Model model = model_of("llama-3-70b");
  const RunConditions conditions = usual_conditions(model, 15e12, 8192);
  const RunCost cost = run_cost(model, step_of(12768, 1e8), 989.4e12, conditions, {});
  EXPECT_GE(cost.goodput.write_s, 847e9 / 500e9);
  EXPECT_LT(cost.goodput.checkpoint_s, cost.goodput.write_s);  // beside the training
  EXPECT_GE(cost.goodput.interval_s, 600);
  // A longer interval loses more to each failure, and never gains.
  EXPECT_LE(cost.goodput.share,
            goodput_at(daly_interval_s(cost.goodput.checkpoint_s, cost.goodput.mtbf_s),
                       cost.goodput.checkpoint_s, conditions.restart_s, cost.goodput.mtbf_s));
}

}  // namespace
}  // namespace shardwright::tuner
