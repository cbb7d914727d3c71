// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "profiles/data_file.h"
#include "tuner/size/whole_run.h"

namespace shardwright::tuner {
namespace {

using profiles::WholeRun;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

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

  EXPECT_THAT(pythia.assumed, Not(Contains(HasSubstr("instead of"))));
}

TEST(WholeRunIdeal, DividesTheModelAsPublished) {
  const IdealHours glm = IdealHoursOf(0.4)(shipped("glm-130b"));
  ASSERT_TRUE(glm.plan.has_value());
  EXPECT_EQ(glm.stack, "megatron-deepspeed");
  EXPECT_EQ(glm.plan->parallel.tp, 4);
  EXPECT_EQ(glm.plan->parallel.pp, 8);
  EXPECT_EQ(glm.plan->parallel.virtual_stages, 1);
  EXPECT_EQ(glm.plan->strategy, Strategy::kDistributedOptimizer);
  EXPECT_EQ(glm.plan->ckpt_layers, 70);
  // 8,650,752 tokens a step, in sequences of 2,048, over 768 / (4 x 8) replicas.
  EXPECT_EQ(glm.plan->micro_batch * glm.plan->grad_accum, 8650752 / 2048 / 24);
  // Its steady steps ran at 127.83 tokens/s a GPU.
  EXPECT_NEAR(400e9 / glm.gpu_hours / 3600, 127.83, 0.35 * 127.83);
}

TEST(WholeRunIdeal, RoundedBatchesFillThePipeline) {
  const IdealHours llama = IdealHoursOf(0.4)(shipped("llama-3.1-405b"));
  ASSERT_TRUE(llama.plan.has_value());
  // 1.6e7 tokens are 15.3 sequences for each of 128 replicas: 16, as the stages are.
  EXPECT_EQ(llama.plan->gpus, 16384);
  EXPECT_EQ(llama.plan->micro_batch * llama.plan->grad_accum, 16);
  // 154.5 tokens/s a GPU were measured in steady steps.
  EXPECT_NEAR(15.6e12 / llama.gpu_hours / 3600, 154.51, 0.1 * 154.51);
  // Nothing ran again, though this stack would need it to fit.
  EXPECT_EQ(llama.plan->ckpt_layers, 0);
  EXPECT_THAT(llama.assumed, Contains(HasSubstr("the published layout fits")));
}

TEST(WholeRunIdeal, ExpertsAreDividedAsPublished) {
  const WholeRun run = shipped("deepseek-v3");
  ASSERT_TRUE(run.model.has_value());
  EXPECT_EQ(run.model->experts.count, 256);
  EXPECT_EQ(run.model->experts.shared_ffn, 2048);
  EXPECT_EQ(run.model->experts.first_layer, 3);
  EXPECT_EQ(run.model->latent.q_rank, 1536);
  EXPECT_EQ(run.model->head_dim, 192);
  EXPECT_EQ(run.model->mtp_layers, 1);
  const IdealHours hours = IdealHoursOf(0.4)(run);
  ASSERT_TRUE(hours.plan.has_value());
  EXPECT_EQ(hours.plan->parallel.ep, 64);
  EXPECT_EQ(hours.plan->parallel.schedule(), PipelineKind::kDualpipe);
  EXPECT_EQ(hours.plan->parallel.dispatcher, Dispatcher::kDeepEp);
  EXPECT_EQ(hours.plan->numerics.precision, Precision::kFp8);
  EXPECT_EQ(hours.plan->recompute, Recompute::kPieces);

  const WholeRun maverick = shipped("llama-4-maverick");
  EXPECT_EQ(maverick.model->experts.every, 2);
}

// 13e9 parameters that multiply, without attention, which nobody published: 6 FLOPs each.
TEST(WholeRunIdeal, WithoutAnArchitectureAStepIsAnalytic) {
  const WholeRun run = shipped("luminous-base-13b");
  const IdealHours hours = IdealHoursOf(0.4)(run);
  EXPECT_FALSE(hours.plan.has_value());
  EXPECT_EQ(hours.step_half_width, 0);
  EXPECT_NEAR(hours.gpu_hours,
              6 * run.matmul_parameters * run.tokens / (0.4 * run.peak_flops) / 3600, 1);
  EXPECT_THAT(hours.assumed, Contains(HasSubstr("the architecture is not published")));
  EXPECT_THAT(hours.assumed, Contains(HasSubstr("40 % of the 16-bit peak")));
}

TEST(WholeRunIdeal, NamesOfGpusAndSoftware) {
  EXPECT_EQ(gpu_of_name("a100-80g-sxm"), "a100-80g");
  EXPECT_EQ(gpu_of_name("A800-80G-SXM4"), "a100-80g");
  EXPECT_EQ(gpu_of_name("h800-80g-sxm"), "h800");
  EXPECT_EQ(gpu_of_name("abacus"), "");
  EXPECT_EQ(stack_of_software("llm-foundry / Composer"), "mpt-eager");
  EXPECT_EQ(stack_of_software("Megatron-LM fork"), "torch-eager");
  EXPECT_EQ(stack_of_software("custom (Meta)"), "torch-compile-eager-loss");
  EXPECT_EQ(model_parallel_stack_of("GPT-NeoX (Megatron + DeepSpeed)"), "megatron-deepspeed");
  EXPECT_EQ(model_parallel_stack_of("Megatron-LM fork, FlashAttention"), "megatron-core");
  EXPECT_EQ(model_parallel_stack_of("nanotron"), "nanotron");
}

TEST(WholeRunScore, ScoresInLogHoursAndSkipsNothingSilently) {
  WholeRun good = shipped("mpt-7b"), nothing = good, contradictory = good;
  nothing.id = "no-tokens";
  nothing.not_scorable = "the number of tokens is not published";
  contradictory.id = "tier-c";
  contradictory.tier = 'C';
  profiles::Production production;
  production.log_factor = std::log(1.4);
  production.half_widths = {0.3, 0.3};
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
