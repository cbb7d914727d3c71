// SPDX-License-Identifier: Apache-2.0
// Guards the reader of trainers' logs: lines as torchtitan, Megatron-LM, NeMo, nanotron and
// Transformers' Trainer print them become step times, each step once.
#include "profiles/import/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "sim/core/base/error.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTokensPerGpu = 8192;

StepLog log_of(const std::string& text) {
  const std::filesystem::path file = testing::temp_folder() / "train.log";
  std::ofstream(file, std::ios::binary) << text;
  return read_step_log(file, kTokensPerGpu);
}

auto seconds(double value) {
  return DoubleNear(value, 1e-9 * value);
}

TEST(StepLog, ReadsRatesOfTorchtitanThroughColoursAndRanks) {
  const StepLog log = log_of(
      "[rank0]:[titan] 2026-03-01 10:00:00,000 - root - INFO - Training starts at step 1\n"
      "[rank0]:[titan] - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2  \x1b[38;2;180;60;0m"
      "grad_norm:  4.1  \x1b[33mmemory: 62.1GiB(78.5%)  \x1b[34mtps: 1,024  \x1b[36mtflops: 59.3"
      "\x1b[39m\n"
      "[rank1]:[titan] - root - INFO - step:  1  loss: 12.2  memory: 62.1GiB(78.5%)  tps: 1,024\n"
      "[rank0]:[titan] - root - INFO - step: 10  loss:  9.8  memory: 62.1GiB(78.5%)  tps: 8,192\n");
  EXPECT_EQ(log.format, "torchtitan");
  EXPECT_THAT(log.seconds, ElementsAre(seconds(8), seconds(1)));
}

TEST(StepLog, ReadsMegatronAndNothingOfItsOtherNumbers) {
  const StepLog log = log_of(
      " [2026-03-01 10:00:00] iteration        1/  500 | consumed samples:          512 | elapsed "
      "time per iteration (ms): 20512.3 | throughput per GPU (TFLOP/s/GPU): 91.2 | learning rate: "
      "3.0E-07 | global batch size:   512 | lm loss: 1.2E+01 |\n"
      " [2026-03-01 10:00:20] iteration        2/  500 | consumed samples:         1024 | elapsed "
      "time per iteration (ms): 4512.5 | global batch size:   512 |\n");
  EXPECT_EQ(log.format, "Megatron");
  EXPECT_THAT(log.seconds, ElementsAre(seconds(20.5123), seconds(4.5125)));
}

TEST(StepLog, ANumberEndsWhereItIsNoneAnyMore) {
  const auto of = [](const std::string& number) {
    return log_of(" iteration 1/ 5 | elapsed time per iteration (ms): " + number +
                  " | lm loss: 1 |\n")
        .seconds;
  };
  EXPECT_THAT(of("1,577.27"), ElementsAre(seconds(1.57727)));
  EXPECT_THAT(of("1.5e+3"), ElementsAre(seconds(1.5)));
  EXPECT_THAT(of("20.e"), ElementsAre(seconds(0.02)));
  EXPECT_THAT(of("20e-"), ElementsAre(seconds(0.02)));
  EXPECT_THAT(of("20.5.4"), ElementsAre(seconds(0.0205)));
}

TEST(StepLog, ReadsThousandsOfNanotron) {
  const StepLog log = log_of(
      "03/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 1800 | consumed_tokens: 4.19M | "
      "elapsed_time_per_iteration_ms: 5.87K | tokens_per_sec: 715K | lm_loss: 10.8 |\n"
      "03/01/2026 10:00:09 [INFO|DP=0|PP=0|TP=0]: iteration: 3 / 1800 | consumed_tokens: 6.29M | "
      "time_per_iteration_ms: 873 | tokens_per_sec: 2.4M |\n");
  EXPECT_EQ(log.format, "nanotron");
  EXPECT_THAT(log.seconds, ElementsAre(seconds(5.87), seconds(0.873)));
}

TEST(StepLog, ReadsNeMoAsLinesAndAsABar) {
  EXPECT_THAT(log_of("Training epoch 0, iteration 9/99 | lr: 1.5e-06 | global_batch_size: 512 | "
                     "global_step: 9 | reduced_train_loss: 11.03 | train_step_timing in s: 6.341\n"
                     "Training epoch 0, iteration 10/99 | global_step: 10 | train_step_timing in "
                     "s: 6.297 | consumed_samples: 5632\n")
                  .seconds,
              ElementsAre(seconds(6.341), seconds(6.297)));
  const StepLog bar = log_of(
      "Epoch 0: :   1%|1| 10/1000 [00:20<33:00, v_num=3, reduced_train_loss=10.3, "
      "global_step=9.000,"
      " consumed_samples=5120.0, train_step_timing in s=2.340]\r");
  EXPECT_EQ(bar.format, "NeMo");
  EXPECT_THAT(bar.seconds, ElementsAre(seconds(2.34)));
}

TEST(StepLog, ReadsBarsOfTheTrainerOnceAStep) {
  const StepLog log = log_of(
      "  1%|1         | 1/100 [00:05<08:30,  5.15s/it]\r"
      "  1%|1         | 1/100 [00:05<08:30,  5.15s/it]\r"
      "  2%|2         | 2/100 [00:06<03:02,  1.25it/s]\n"
      "{'train_runtime': 60.0, 'train_steps_per_second': 0.5}\n");
  EXPECT_THAT(log.seconds, ElementsAre(seconds(5.15), seconds(0.8)));
}

TEST(StepLog, TakesTheSummaryWhereThereIsNoBar) {
  EXPECT_THAT(log_of("{'loss': 1.2, 'epoch': 0.5}\n{'train_runtime': 812.4, "
                     "'train_samples_per_second': 32.0, 'train_steps_per_second': 0.25}\n")
                  .seconds,
              ElementsAre(seconds(4)));
}

TEST(StepLog, ReadsItsOwnMetrics) {
  EXPECT_THAT(log_of("{\"step\":1,\"loss\":5.5,\"step_time_s\":0.5}\n"
                     "{\"step\":2,\"loss\":5.4,\"step_time_s\":0.25}\n")
                  .seconds,
              ElementsAre(seconds(0.5), seconds(0.25)));
}

TEST(StepLog, NamesTheFileThatHoldsNoStep) {
  EXPECT_THAT(testing::refusal_of([] { log_of("loss: nan\ntps: 0\nstep: 1 loss: 2 tps: 0\n"); }),
              ::testing::AllOf(HasSubstr("train.log: holds no step, expected a log of torchtitan"),
                               HasSubstr("nanotron")));
}

TEST(StepLog, TakesTheMedianBehindTheWarmUp) {
  const StepLog log{"Megatron", {20, 9, 1.0, 1.1, 1.05, 1.0, 3.0}};
  const MedianStep median = median_step(log, 2);
  EXPECT_NEAR(median.seconds, 1.05, 1e-12);
  EXPECT_EQ(median.steps, 5);
  EXPECT_EQ(median.skipped, 2);
  EXPECT_LT(median.spread, 0.1);
  EXPECT_EQ(median_step(log, 7).skipped, 3);
  EXPECT_EQ(median_step({"Megatron", {2.0}}, 5).seconds, 2.0);
}

}  // namespace
}  // namespace shardwright::profiles
