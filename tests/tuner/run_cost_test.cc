// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/run_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "profiles/data_file.h"
#include "profiles/ledger/whole_runs.h"
#include "profiles/operations.h"
#include "sim/core/base/error.h"
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

// Goodput against hand arithmetic, against a simulation that draws failures one by one, and against
// the one public run that tells enough.

namespace {

TEST(Goodput, IntervalsByHand) {
  // d = 50 s, M = 10,000 s: sqrt(2 * 50 * 10000) = 1000 s; sqrt(d/2M) = 0.05, d/2M = 0.0025:
  // 1000 * (1 + 0.05/3 + 0.0025/9) - 50 = 966.944 s.
  EXPECT_DOUBLE_EQ(young_interval_s(50, 10'000), 1000);
  EXPECT_NEAR(daly_interval_s(50, 10'000), 966.944, 0.001);
  EXPECT_DOUBLE_EQ(daly_interval_s(50, 20), 20);  // checkpoints take longer than runs last
}

TEST(Goodput, ShareByHand) {
  // t = 966.944, d = 50, R = 900, M = 10,000: e^0.09 = 1.094174, e^0.1016944 - 1 = 0.107045;
  // 0.0966944 / (1.094174 * 0.107045) = 0.825559.
  EXPECT_NEAR(goodput_at(966.944, 50, 900, 10'000), 0.825559, 2e-6);
}

TEST(Goodput, DalysIntervalLosesNothingAgainstTheBestOne) {
  for (const double checkpoint_s : {1.0, 30.0, 600.0}) {
    for (const double mtbf_s : {3600.0, 40'000.0, 1e6}) {
      double best = 0;
      for (double interval_s = 1; interval_s < 10 * mtbf_s; interval_s *= 1.01)
        best = std::max(best, goodput_at(interval_s, checkpoint_s, 900, mtbf_s));
      const double daly =
          goodput_at(daly_interval_s(checkpoint_s, mtbf_s), checkpoint_s, 900, mtbf_s);
      EXPECT_GT(daly, best * 0.9995) << checkpoint_s << " " << mtbf_s;
    }
  }
}

/// Wall time for `work_s`, with interruptions drawn from an exponential distribution.
double simulated_wall_s(double work_s, double interval_s, double checkpoint_s, double restart_s,
                        double mtbf_s) {
  std::uint64_t state = 12345;
  const auto next_failure_s = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const double u = (static_cast<double>(state >> 11) + 0.5) * 0x1.0p-53;
    return -std::log(u) * mtbf_s;
  };
  double wall_s = 0, done_s = 0, failure_s = next_failure_s();
  bool down = false;
  while (done_s < work_s) {
    const double needed_s = (down ? restart_s : 0) + interval_s + checkpoint_s;
    if (failure_s >= needed_s) {
      wall_s += needed_s;
      failure_s -= needed_s;
      done_s += interval_s;
      down = false;
      continue;
    }
    wall_s += failure_s;
    failure_s = next_failure_s();
    down = true;
  }
  return wall_s;
}

TEST(Goodput, AgreesWithFailuresDrawnOneByOne) {
  for (const double mtbf_s : {4000.0, 20'000.0}) {
    const double checkpoint_s = 40, restart_s = 600, work_s = 4e8;
    const double interval_s = daly_interval_s(checkpoint_s, mtbf_s);
    const double wall_s = simulated_wall_s(work_s, interval_s, checkpoint_s, restart_s, mtbf_s);
    EXPECT_NEAR(work_s / wall_s, goodput_at(interval_s, checkpoint_s, restart_s, mtbf_s), 0.01)
        << mtbf_s;
  }
}

// The report says that more than 90 % of the time was effective, at one interruption in 3.1 hours.
TEST(Goodput, TheShippedConstantsGiveAboutWhatLlama3Reported) {
  const profiles::Operations operations = profiles::load_operations();
  const double mtbf_gpu_hours = 16384.0 * 54 * 24 / 419;
  const Model model = load_model(profiles::data_dir() / "models", "llama-3.1-405b");
  const Bytes bytes = checkpoint_bytes(model, Plan{});
  EXPECT_NEAR(static_cast<double>(bytes), 405.85e9 * 12, 1e10);
  const double checkpoint_s = static_cast<double>(bytes) / (16384 * operations.gpu_bytes_per_s);
  const Goodput goodput = goodput_of({mtbf_gpu_hours, operations.restart_s, checkpoint_s}, 16384);
  EXPECT_NEAR(goodput.mtbf_s / 3600, 3.09, 0.01);
  EXPECT_GT(goodput.share, 0.87);
  EXPECT_LT(goodput.share, 0.93);
  EXPECT_EQ(goodput_of({50'000, 0, 1}, 1).mtbf_s, 50'000.0 * 3600);
}

TEST(CriticalBatch, KaplanByHandForLlama2) {
  // N = 68.7e9 without embeddings and head, D = 2e12: (6.4e13 / 6.871e10)^(0.076/0.103) = 155.3 and
  // 1.8e13 / 2e12 = 9: L = 164.3^0.103 = 1.6915; 2e8 / 1.6915^(1/0.21) = 1.637e7 tokens.
  const profiles::Operations constants = profiles::load_operations();
  const Model model = load_model(profiles::data_dir() / "models", "llama-2-70b");
  EXPECT_NEAR(expected_loss(model, 2e12, constants), 1.6915, 0.002);
  profiles::BatchLaw kaplan;
  kaplan.by_loss = true;
  EXPECT_NEAR(critical_tokens(kaplan, model, 2e12, constants) / 1e6, 16.4, 0.1);
}

// 0.0471 x (14.8e12)^0.462 = 57,200 sequences of 2,048 tokens: 117 M.
TEST(CriticalBatch, BergsmaByHandForDeepSeekV3) {
  profiles::BatchLaw law;
  law.coefficient = 96.46;
  law.tokens_exponent = 0.462;
  EXPECT_NEAR(critical_tokens(law, model_of("llama-2-70b"), 14.8e12, {}) / 1e6, 117, 1);
}

// DeepSeek-V3 took steps of 62.9 M tokens and Llama 3 405B of 16 M; neither wasted tokens.
TEST(CriticalBatch, NoPublishedTrainingIsToldThatItWastesTokens) {
  const profiles::CriticalBatch shipped = profiles::load_critical_batch();
  EXPECT_EQ(shipped.command, "shardwright_fit critical-batch");
  EXPECT_EQ(shipped.chosen().beyond, 0);
  int runs = 0;
  for (const profiles::WholeRun& run : profiles::load_whole_runs(profiles::shipped_whole_runs())) {
    if (!run.model || !run.global_batch_tokens) continue;
    const RunConditions conditions = usual_conditions(*run.model, run.tokens, 4096);
    EXPECT_LE(
        tokens_factor(*run.global_batch_tokens, conditions.free_tokens, conditions.critical_tokens),
        1.001)
        << run.id;
    ++runs;
  }
  EXPECT_GT(runs, 25);
}

TEST(Operations, AFileWithAMistakeIsNamed) {
  try {
    profiles::load_operations(SHARDWRIGHT_TEST_DATA "/no_such_operations.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no_such_operations.json"), std::string::npos);
  }
}

}  // namespace

}  // namespace shardwright::tuner
