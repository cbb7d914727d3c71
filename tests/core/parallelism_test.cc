// SPDX-License-Identifier: Apache-2.0
// Knobs of parallelism: read, written, kept in plan files, and refused where they divide nothing.
#include "sim/core/parallelism.h"

#include "sim/core/plan_json.h"
#include "sim/core/plan_knobs.h"
#include "tests/core/common.h"

namespace shardwright {
namespace {

Model llama_8b() {
  Model model;
  model.layers = 32;
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn = 14336;
  model.vocab = 128256;
  model.max_positions = 131072;
  return model;
}

Plan plan_of(std::int64_t gpus) {
  Plan plan;
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.gpus = gpus;
  plan.seq_len = 8192;
  plan.recompute = Recompute::kNone;
  plan.stack = "megatron-core";
  return plan;
}

void expect_refused(const Plan& plan, const std::string& words, const Model& model = llama_8b()) {
  EXPECT_THAT(testing::refusal_of([&] { check_plan(plan, model, 8); }),
              ::testing::HasSubstr(words));
}

TEST(Parallelism, DefaultsDivideNothing) {
  EXPECT_TRUE(Parallelism{}.plain());
  EXPECT_TRUE(Numerics{}.plain());
}

TEST(Parallelism, SequenceParallelFollowsTensorParallel) {
  Parallelism p;
  EXPECT_FALSE(p.sequence_parallel());
  p.tp = 2;
  EXPECT_TRUE(p.sequence_parallel());
  p.sp = false;
  EXPECT_FALSE(p.sequence_parallel());
}

TEST(Parallelism, KnobsAndPlanFilesSayTheSame) {
  const std::vector<std::pair<std::string, std::string>> given = {{"tp", "4"},
                                                                  {"sp", "off"},
                                                                  {"pp", "8"},
                                                                  {"virtual-stages", "2"},
                                                                  {"cp", "2"},
                                                                  {"cp-comm", "a2a"},
                                                                  {"ep", "2"},
                                                                  {"etp", "2"},
                                                                  {"dispatcher", "deepep"},
                                                                  {"expert-capacity", "1.25"},
                                                                  {"expert-load", "no-aux-loss"},
                                                                  {"cuda-graphs", "router"},
                                                                  {"ep-overlap", "on"},
                                                                  {"tp-overlap", "none"},
                                                                  {"rank-order", "tp-cp-ep-pp-dp"},
                                                                  {"precision", "fp8"},
                                                                  {"fp8-recipe", "block"},
                                                                  {"fp8-params", "on"},
                                                                  {"optimizer", "muon"},
                                                                  {"lora", "16"},
                                                                  {"offload", "activations:3"}};
  GivenKnobs knobs;
  for (const auto& [name, text] : given) plan_knob(name).read(knobs, "--" + name, text);
  const Plan plan = with_knobs(plan_of(512), knobs, 32);
  for (const auto& [name, text] : given) EXPECT_EQ(plan_knob(name).write(plan), text) << name;
  PlanDocument document;
  document.plan = plan;
  EXPECT_EQ(parse_plan(plan_text(document), "plan.json").plan, plan);
}

TEST(Parallelism, PlainPlanFilesHaveNoSuchKeys) {
  PlanDocument document;
  EXPECT_EQ(plan_text(document).find("\"tp\""), std::string::npos);
}

TEST(Parallelism, SizesMustDivide) {
  Plan plan = plan_of(64);
  check_plan(plan, llama_8b(), 8);
  plan.parallel.tp = 3;
  expect_refused(plan, "gpus is 64");
  plan = plan_of(96);
  plan.parallel.tp = 3;
  expect_refused(plan, "tp is 3, which does not divide 32 heads, expected 2 or 4");
  plan = plan_of(64);
  plan.parallel.pp = 64;
  expect_refused(plan, "more than the 32 layers");
  plan = plan_of(64);
  plan.parallel.cp = 2;
  plan.seq_len = 8190;
  expect_refused(plan, "cp is 2");
  plan = plan_of(64);
  plan.parallel.virtual_stages = 2;
  expect_refused(plan, "virtual_stages is 2, but pp is 1");
  plan.parallel.pp = 4;
  plan.parallel.pp_schedule = PipelineKind::kGpipe;
  expect_refused(plan, "virtual_stages is 2, but pp_schedule is gpipe");
}

TEST(Parallelism, ContradictionsAreNamed) {
  Plan plan = plan_of(64);
  plan.parallel.sp = true;
  expect_refused(plan, "sp is on, but tp is 1");
  plan = plan_of(64);
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  expect_refused(plan, "tp_overlap is userbuffers, but tp is 1");
  plan = plan_of(64);
  plan.numerics.fp8_recipe = Fp8Recipe::kBlock;
  expect_refused(plan, "fp8_recipe is block, but precision is bf16");
  plan = plan_of(64);
  plan.parallel.pp = 2;
  plan.sum_uses = 1;
  expect_refused(plan, "sum_uses is 1, but pp is 2, and stages sum apart, expected 2");
  plan.sum_uses = 3;
  expect_refused(plan, "sum_uses is 3, expected 1 or 2");
  plan = plan_of(64);
  plan.parallel.rank_order = "tp-dp";
  expect_refused(plan, "rank_order is 'tp-dp'");
}

// Ranks that hold the same part of the model are one group of the strategy, or of hsdp's groups:
// what is reduced within groups and nowhere else trains as many models as there are groups.
TEST(Parallelism, OnlyHybridStrategiesShardInGroups) {
  for (const Strategy id : all_strategies()) {
    const StrategyInfo& strategy = info_of(id);
    if (strategy.one_rank) continue;
    SCOPED_TRACE(strategy.name);
    Plan plan = plan_of(64);
    plan.strategy = id;
    plan.parallel.tp = 2;
    plan.shard_group = 8;
    if (strategy.hybrid || strategy.bucketed) {
      EXPECT_NO_THROW(check_plan(plan, llama_8b(), 8));
    } else {
      expect_refused(plan, "shard_group is 8, but the strategy");
      plan.shard_group = strategy.replicates() ? 1 : 32;
      EXPECT_NO_THROW(check_plan(plan, llama_8b(), 8));
      plan.parallel.tp = 1;
      plan.parallel.cp = 2;
      EXPECT_NO_THROW(check_plan(plan, llama_8b(), 8));
    }
  }
}

TEST(Parallelism, ExpertsOverlapOnlyWhereMicroBatchesDoNotWaitForEachOther) {
  Model model = llama_8b();
  model.experts = {.count = 8, .per_token = 2, .ffn = 1024};
  Plan plan = plan_of(64);
  plan.parallel.ep_overlap = true;
  expect_refused(plan, "ep_overlap is on, but ep is 1, expected off or a larger ep", model);
  plan.parallel.ep = 8;
  check_plan(plan, model, 8);
  plan.parallel.pp = 2;
  expect_refused(
      plan,
      "ep_overlap is on, but with pp_schedule 1f1b a stage's next micro-batch waits for the one "
      "before, expected off, pp 1 or the schedule interleaved or dualpipe",
      model);
  plan.parallel.pp_schedule = PipelineKind::kZb1p;
  expect_refused(plan, "ep_overlap is on, but with pp_schedule zb1p", model);
  plan.parallel.pp_schedule.reset();
  plan.parallel.virtual_stages = 2;
  check_plan(plan, model, 8);
}

TEST(Parallelism, WhatRunsAgainOrLeavesIsPartOfTheModel) {
  Plan plan = plan_of(64);
  plan.ckpt_layers = 32;
  set_recompute(plan, "layernorm,moe_act");
  expect_refused(plan, "moe_act, but the model has no experts");
  set_recompute(plan, "mla_up_proj");
  expect_refused(plan, "recompute is mla_up_proj, but the model has no latent attention");
  plan = plan_of(64);
  plan.offload = Offload::kActivations;
  plan.offload_layers = 40;
  expect_refused(plan, "offload is activations:40, more than the 32 layers");
  plan.offload_layers = 8;
  check_plan(plan, llama_8b(), 8);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = 4;
  expect_refused(plan, "offload is activations:8, but ckpt_layers is 4");
}

}  // namespace
}  // namespace shardwright
