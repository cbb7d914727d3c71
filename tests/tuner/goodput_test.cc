// SPDX-License-Identifier: Apache-2.0
// Goodput against hand arithmetic, against a simulation that draws failures one by one, and against
// the one public run that tells enough.
#include "tuner/runs/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "profiles/data_dir.h"
#include "profiles/ledger/whole_runs.h"
#include "profiles/operations.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "tests/tuner/models.h"
#include "tuner/runs/critical_batch.h"
#include "tuner/runs/run_cost.h"

namespace shardwright::tuner {
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
