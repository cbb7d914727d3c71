// SPDX-License-Identifier: Apache-2.0
// Model-parallel plans as settings for Megatron-LM, Megatron-Bridge and torchtitan: what is
// written, what is refused by name, and that bash and Python read it. That each key exists in the
// packages is looked up by scripts/check_exports.

#include <regex>

#include "cli/export/settings.h"
#include "sim/core/hf/config.h"
#include "sim/program/low_precision.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

sim::Job job_of(const std::string& model, const std::string& stack = "megatron-core") {
  sim::Job inputs;
  inputs.model_name = model;
  inputs.cluster_name = "dgx-h100";
  inputs.model = load_model(profiles::data_dir() / "models", model);
  inputs.profile = profiles::load_profile("dgx-h100", stack);
  return inputs;
}

/// Llama 3.1 405B on 1,024 GPUs: tp 8, pp 8, v 8, cp 2.
Plan large_plan() {
  Plan plan;
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.stack = "megatron-core";
  plan.gpus = 1024;
  plan.seq_len = 8192;
  plan.grad_accum = 64;
  plan.recompute = Recompute::kNone;
  plan.parallel.tp = 8;
  plan.parallel.pp = 8;
  plan.parallel.virtual_stages = 8;
  plan.parallel.cp = 2;
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  return plan;
}

Plan expert_plan() {
  Plan plan = large_plan();
  plan.parallel = {};
  plan.gpus = 256;
  plan.seq_len = 4096;
  plan.parallel.pp = 4;
  plan.parallel.ep = 16;
  plan.parallel.dispatcher = Dispatcher::kDeepEp;
  plan.numerics.precision = Precision::kFp8;
  plan.numerics.fp8_recipe = Fp8Recipe::kBlock;
  plan.moment_dtype = DType::kBf16;
  plan.recompute = Recompute::kPieces;
  plan.pieces = kPieceMlaUpProjection | kPieceMoeActivation;
  plan.ckpt_layers = 61;
  plan.parallel.pp_layout = "Et*15|t*16|t*16|t*14mL";
  return plan;
}

TEST(ModelParallelExport, MegatronGetsEveryChoiceOfTheLargePlan) {
  const sim::Job job = job_of("llama-3.1-405b");
  const std::string text = megatron_lm_settings(job, large_plan()).body.text();
  expect_says(text,
              {"--tensor-model-parallel-size 8", "--sequence-parallel", "--tp-comm-overlap",
               "--pipeline-model-parallel-size 8", "--num-virtual-stages-per-pipeline-rank 8",
               "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
               "--context-parallel-size 2", "--cp-comm-type p2p", "--use-distributed-optimizer",
               "--micro-batch-size 1", "--global-batch-size 512", "--num-layers 126",
               "--num-query-groups 8", "--seq-length 8192", "--swiglu", "--bf16",
               "export CUDA_DEVICE_MAX_CONNECTIONS=1"});
  EXPECT_THAT(text, Not(HasSubstr("--recompute")));
  EXPECT_THAT(text, Not(HasSubstr("--num-experts")));
}

TEST(ModelParallelExport, MegatronGetsExperts) {
  const sim::Job job = job_of("deepseek-v3");
  const std::string text = megatron_lm_settings(job, expert_plan()).body.text();
  expect_says(text, {"--num-experts 256", "--moe-router-topk 8", "--expert-model-parallel-size 16",
                     "--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep",
                     "--multi-latent-attention", "--kv-lora-rank 512", "--mtp-num-layers 1",
                     "--fp8-recipe blockwise", "--fp8-format e4m3", "--exp-avg-dtype bf16",
                     "--recompute-modules mla_up_proj moe_act",
                     "--pipeline-model-parallel-layout 'Et*15|t*16|t*16|t*14mL'"});
}

/// Stacks that overlap by themselves leave MoE models alone, in predictions and in what is
/// exported.
TEST(ModelParallelExport, TensorOverlapOfMoeModelsIsOffUnlessSaid) {
  sim::Job job = job_of("deepseek-v3");
  job.profile.stack.parallel.tp_overlap = "userbuffers";
  Plan plan = expert_plan();
  plan.parallel.tp = 2;
  plan.parallel.tp_overlap.reset();
  EXPECT_THAT(megatron_lm_settings(job, plan).body.text(), Not(HasSubstr("--tp-comm-overlap")));
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  EXPECT_THAT(megatron_lm_settings(job, plan).body.text(), HasSubstr("--tp-comm-overlap"));
}

/// What a plan leaves open is exported as it was predicted.
TEST(ModelParallelExport, ScalesFp8AsPredictionDoes) {
  Plan plan = expert_plan();
  plan.numerics.fp8_recipe.reset();
  Plan named = plan;
  named.numerics.fp8_recipe = sim::fp8_recipe_of(plan);
  const sim::Job job = job_of("deepseek-v3");
  EXPECT_EQ(megatron_lm_settings(job, plan).body.text(),
            megatron_lm_settings(job, named).body.text());
  EXPECT_EQ(megatron_bridge_settings(job, plan).body.text(),
            megatron_bridge_settings(job, named).body.text());
}

/// What Megatron-LM's validate_args demands beside an argument.
TEST(ModelParallelExport, MegatronsOwnValidationIsMet) {
  const sim::Job job = job_of("llama-3.1-405b");
  Plan plan = large_plan();
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.offload = Offload::kOptimizer;
  EXPECT_THAT(megatron_lm_settings(job, plan).body.text(),
              HasSubstr("--use-precision-aware-optimizer"));
  plan.strategy = Strategy::kDdp;
  EXPECT_THROW(megatron_lm_settings(job, plan), Error);
  plan.strategy = Strategy::kMegatronFsdp;
  plan.offload = Offload::kNone;
  const std::string fsdp = megatron_lm_settings(job, plan).body.text();
  EXPECT_THAT(fsdp, HasSubstr("--ckpt-format fsdp_dtensor"));
  EXPECT_THAT(fsdp, Not(HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS")));
}

TEST(ModelParallelExport, TorchtitansMainCountsTokens) {
  const sim::Job job = job_of("llama-3.1-405b");
  Plan plan = large_plan();
  plan.strategy = Strategy::kFsdp2;
  plan.parallel.tp_overlap = TensorOverlap::kNone;
  const std::string text = torchtitan_main_settings(job, plan).body.text();
  expect_says(text, {"config.training.max_context_length = 8192",
                     "config.training.num_tokens_per_microbatch_per_dp_rank = 1 * 8192",
                     "config.training.num_tokens_per_train_step = 512 * 8192",
                     "config.parallelism.num_pp_microbatches =",
                     "config.training.disable_cuda_graphs = True"});
  EXPECT_THAT(text, Not(HasSubstr("local_batch_size")));
}

TEST(ModelParallelExport, BashReadsTheArguments) {
  const std::string path = temp_path("megatron.sh");
  std::ofstream(path) << megatron_lm_settings(job_of("deepseek-v3"), expert_plan()).body.text();
  expect_says(
      output_of(run_program(
          {"/bin/bash", "-euc", "source \"$0\"; printf '%s\\n' \"${MEGATRON_ARGS[@]}\"", path})),
      {"--pipeline-model-parallel-layout\nEt*15|t*16|t*16|t*14mL\n",
       "--recompute-modules\nmla_up_proj\nmoe_act\n"});
}

TEST(ModelParallelExport, BridgeOverridesTheRecipe) {
  const std::string large =
      megatron_bridge_settings(job_of("llama-3.1-405b"), large_plan()).body.text();
  expect_says(
      large,
      {"from megatron.bridge.recipes.llama.llama3 import llama31_405b_pretrain_config as recipe",
       "config.model.tensor_model_parallel_size = 8",
       "config.model.virtual_pipeline_model_parallel_size = 8",
       "config.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)",
       "config.train.global_batch_size = 512", "config.mixed_precision = \"bf16_mixed\""});
  Plan adapters = large_plan();
  adapters.numerics.lora = 16;
  EXPECT_THAT(megatron_bridge_settings(job_of("llama-3.1-405b"), adapters).body.text(),
              HasSubstr("config.peft = LoRA(dim=16)"));
  Plan small = large_plan();
  small.parallel.virtual_stages = 1;
  const TrainerSettings unknown = megatron_bridge_settings(job_of("mistral-7b"), small);
  EXPECT_EQ(unknown.remarks.back().knob, "gpus");
  EXPECT_TRUE(std::any_of(unknown.remarks.begin(), unknown.remarks.end(),
                          [](const Remark& r) { return r.knob == "model" && r.lost; }));
}

TEST(ModelParallelExport, TorchtitanGetsStagesByName) {
  Plan plan = large_plan();
  plan.gpus = 64;
  plan.parallel.pp = 4;
  plan.parallel.virtual_stages = 1;
  plan.parallel.tp = 4;
  plan.parallel.tp_overlap = TensorOverlap::kAsync;
  plan.strategy = Strategy::kFsdp2;
  plan.stack = "torch-compile";
  plan.grad_accum = 8;
  const sim::Job job = job_of("llama-3-8b", "torch-compile");
  const TrainerSettings settings = torchtitan_settings(job, plan);
  expect_says(settings.body.text(),
              {"config.parallelism.tensor_parallel_degree = 4",
               "config.parallelism.pipeline_parallel_degree = 4",
               "config.parallelism.pipeline_parallel_schedule = \"1F1B\"",
               "config.parallelism.context_parallel_degree = 2",
               "config.parallelism.data_parallel_shard_degree = 2",
               "config.compile.enable_async_tensor_parallel = True",
               "config.training.local_batch_size = 8", "config.training.global_batch_size = 16",
               "[\"tok_embeddings\", \"layers.0\"", "\"layers.31\", \"norm\", \"lm_head\"]"});
  // Every layer is in one part.
  for (int layer = 0; layer < 32; ++layer) {
    const std::string name = "\"layers." + std::to_string(layer) + "\"";
    const std::size_t at = settings.body.text().find(name);
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_EQ(settings.body.text().find(name, at + 1), std::string::npos) << name;
  }
}

TEST(ModelParallelExport, WhatATrainerDoesNotHaveIsRefusedByName) {
  const sim::Job job = job_of("llama-3.1-405b");
  const auto megatron = [&](const std::function<void(Plan&)>& change) {
    Plan plan = large_plan();
    change(plan);
    return refusal_of([&] { megatron_lm_settings(job, plan); });
  };
  EXPECT_EQ(megatron([](Plan&) {}), "accepted");
  EXPECT_THAT(megatron([](Plan& p) { p.parallel.pp_schedule = PipelineKind::kZbv; }),
              HasSubstr("pp_schedule is zbv, which Megatron does not have, expected 1f1b"));
  EXPECT_THAT(megatron([](Plan& p) { p.parallel.tp_overlap = TensorOverlap::kAsync; }),
              HasSubstr("tp_overlap is async"));
  EXPECT_THAT(megatron([](Plan& p) { p.parallel.rank_order = "pp-tp-cp-ep-dp"; }),
              HasSubstr("rank_order is pp-tp-cp-ep-dp"));
  EXPECT_THAT(megatron([](Plan& p) { p.numerics.optimizer = Optimizer::kAdamw8bit; }),
              HasSubstr("optimizer is adamw-8bit"));
  EXPECT_THAT(megatron([](Plan& p) { p.numerics.lora = 8; }), HasSubstr("lora is 8"));
  Plan plan = large_plan();
  plan.parallel.pp_schedule = PipelineKind::kZb1p;
  plan.parallel.virtual_stages = 1;
  plan.parallel.tp_overlap = TensorOverlap::kNone;
  const sim::Job titan = job_of("llama-3.1-405b", "torch-compile");
  EXPECT_THAT(refusal_of([&] { torchtitan_settings(titan, plan); }),
              HasSubstr("pp_schedule is zb1p, which torchtitan does not have"));
  EXPECT_THAT(refusal_of([&] { torchtitan_toml_settings(titan, plan); }),
              HasSubstr("tp is 8, but the TOML"));
  for (const char* name : {"accelerate", "yafsdp", "deepspeed"}) {
    EXPECT_THAT(refusal_of([&] { trainer_named(name).settings(job, plan); }),
                HasSubstr("tp is 8, but"))
        << name;
  }
}

}  // namespace
}  // namespace shardwright::cli
