// SPDX-License-Identifier: Apache-2.0
#include "tuner/whole_run_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "profiles/data_file.h"

namespace shardwright::tuner {
namespace {

using profiles::WholeRun;
using ::testing::Contains;
using ::testing::HasSubstr;

WholeRun shipped(const std::string& id) {
  for (WholeRun& run : profiles::load_whole_runs(profiles::shipped_whole_runs())) {
    if (run.id == id) return std::move(run);
  }
  ADD_FAILURE() << id;
  return {};
}

TEST(WholeRunIdeal, HoldsThePublishedLayoutAndSaysWhatItAssumes) {
  IdealHoursOf ideal_of(0.4);
  const IdealHours tiny = ideal_of(shipped("tinyllama-1.1b"));
  ASSERT_TRUE(tiny.plan.has_value());
  EXPECT_EQ(tiny.plan->gpus, 16);
  EXPECT_EQ(tiny.plan->micro_batch, 8);
  EXPECT_EQ(tiny.plan->ckpt_layers, 0);
  EXPECT_EQ(tiny.plan->micro_batch * tiny.plan->grad_accum * 16 * 2048, 2097152);
  // The first 30 days of it ran at 24,000 tokens/s a GPU: a step, undisturbed.
  EXPECT_NEAR(3e12 / tiny.gpu_hours / 3600, 24000, 0.15 * 24000);
  EXPECT_GT(tiny.step_half_width, 0);

  const IdealHours pythia = ideal_of(shipped("pythia-1b"));
  EXPECT_EQ(pythia.plan->strategy, Strategy::kZero1);
  EXPECT_EQ(pythia.plan->ckpt_layers, 16);
  EXPECT_EQ(pythia.stack, "torch-eager");

  const IdealHours glm = ideal_of(shipped("glm-130b"));
  EXPECT_TRUE(glm.plan.has_value());
  EXPECT_THAT(glm.assumed, Contains(HasSubstr("instead of tensor 4 x pipeline 8")));
}

// DeepSeek-V2: (6 x 20.85e9 + 6 x 60 layers x 128 heads x 128 x 4096) FLOPs on each of 8.1e12
// tokens, at 0.4 of 989.4e12 a second.
TEST(WholeRunIdeal, ExpertsTakeAnAnalyticStep) {
  const IdealHours hours = IdealHoursOf(0.4)(shipped("deepseek-v2"));
  EXPECT_FALSE(hours.plan.has_value());
  EXPECT_EQ(hours.step_half_width, 0);
  const double flops = 6 * 20850769920.0 + 6 * 60.0 * 128 * 128 * 4096;
  EXPECT_NEAR(hours.gpu_hours, flops * 8.1e12 / (0.4 * 989.4e12) / 3600, 1);
  EXPECT_THAT(hours.assumed, Contains(HasSubstr("experts")));
  EXPECT_THAT(hours.assumed, Contains(HasSubstr("40 % of the 16-bit peak")));
}

TEST(WholeRunIdeal, NamesOfGpusAndSoftware) {
  EXPECT_EQ(gpu_of_name("a100-80g-sxm"), "a100-80g");
  EXPECT_EQ(gpu_of_name("A800-80G-SXM4"), "a100-80g");
  EXPECT_EQ(gpu_of_name("h800-80g-sxm"), "h800");
  EXPECT_EQ(gpu_of_name("abacus"), "");
  EXPECT_EQ(stack_of_software("llm-foundry / Composer"), "mpt-eager");
  EXPECT_EQ(stack_of_software("Megatron-LM fork"), "torch-eager");
  EXPECT_EQ(stack_of_software("custom (Meta)"), "torch-compile");
}

TEST(WholeRunScore, ScoresInLogHoursAndSkipsNothingSilently) {
  WholeRun good = shipped("mpt-7b"), nothing = good, contradictory = good;
  nothing.id = "no-tokens";
  nothing.not_scorable = "the number of tokens is not published";
  contradictory.id = "tier-c";
  contradictory.tier = 'C';
  profiles::Production production;
  production.log_factor = std::log(1.4);
  production.half_width = 0.3;
  production.analytic_mfu = 0.4;
  std::int64_t told = 0;
  WholeRunOptions options;
  options.progress = [&](std::int64_t done) { told = done; };
  const WholeRunScore score = score_whole_runs({good, nothing, contradictory}, production, options);
  EXPECT_EQ(told, 3);
  ASSERT_EQ(score.runs.size(), 3U);
  const ScoredWholeRun& row = score.runs[0];
  EXPECT_NEAR(row.gpu_hours, 1.4 * row.ideal.gpu_hours, 1e-6);
  EXPECT_GT(row.interval_gpu_hours[1] / row.gpu_hours, std::exp(0.29));
  EXPECT_EQ(row.inside, row.run.gpu_hours >= row.interval_gpu_hours[0] &&
                            row.run.gpu_hours <= row.interval_gpu_hours[1]);
  EXPECT_EQ(score.runs[1].skipped, "the number of tokens is not published");
  EXPECT_EQ(score.summary.n, 1);  // of tiers A and B
  EXPECT_NEAR(score.summary.median_ratio, row.gpu_hours / 100320, 1e-9);
}

}  // namespace
}  // namespace shardwright::tuner
