// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan.h"

#include "tests/core/common.h"

namespace shardwright {
namespace {

std::string problem_of(const Plan& plan, std::int64_t layers = 80, std::int64_t gpus_per_node = 8) {
  return refusal_of([&] { check_plan(plan, layers, gpus_per_node); });
}

Plan plan_with(Strategy strategy, std::int64_t gpus, std::int64_t shard_group = 0) {
  Plan plan;
  plan.strategy = strategy;
  plan.gpus = gpus;
  plan.shard_group = shard_group;
  return plan;
}

TEST(Plan, EveryNameReadsBackAsItsStrategy) {
  const std::vector<std::string> names = strategy_names();
  ASSERT_EQ(names.size(), static_cast<std::size_t>(kStrategyCount));
  for (int i = 0; i < kStrategyCount; ++i) {
    const auto strategy = static_cast<Strategy>(i);
    EXPECT_EQ(name_of(strategy), names[static_cast<std::size_t>(i)]);
    EXPECT_EQ(strategy_from(name_of(strategy)), strategy);
  }
  EXPECT_EQ(name_of(Strategy::kFsdp1GradOp), "fsdp1-grad-op");
  EXPECT_EQ(name_of(Strategy::kFsdp2NoReshard), "fsdp2-noreshard");
  EXPECT_EQ(name_of(Strategy::kYafsdpZero2), "yafsdp-zero2");
  EXPECT_FALSE(strategy_from("fsdp"));
  EXPECT_EQ(from_word<DType>("bf16"), DType::kBf16);
  EXPECT_FALSE(from_word<DType>("fp8"));
  EXPECT_EQ(from_word<AttentionKind>("eager"), AttentionKind::kEager);
  Plan plan;
  for (const std::string words : {"none", "optimizer", "activations:40"}) {
    EXPECT_TRUE(set_offload(plan, words));
    EXPECT_EQ(offload_name(plan), words);
  }
  EXPECT_EQ(plan.offload_layers, 40);
  EXPECT_FALSE(set_offload(plan, "activations:0"));
  EXPECT_FALSE(set_offload(plan, "everything"));
}

TEST(Plan, RecomputeWordsRoundTrip) {
  for (const std::string words : {"none", "full", "selective-op", "norm", "norm,swiglu", "block",
                                  "norm,swiglu,ffn,attention,block"}) {
    Plan plan;
    set_recompute(plan, words);
    EXPECT_EQ(recompute_name(plan), words);
  }
  Plan plan;
  set_recompute(plan, "ffn+norm");
  EXPECT_EQ(recompute_name(plan), "norm,ffn");
  EXPECT_EQ(plan.pieces, kPieceNorm | kPieceFfn);
  set_recompute(plan, "full");
  EXPECT_EQ(plan.pieces, 0);
}

TEST(Plan, UnknownRecomputeWordsAreErrorsThatLeaveThePlanAlone) {
  for (const std::string words :
       {"", "ful", "norm,", "norm,none", "full,norm", ",", "norm swiglu"}) {
    Plan plan;
    EXPECT_EQ(refusal_of([&] { set_recompute(plan, words); }),
              "recompute is '" + words +
                  "', expected none, full, selective-op, or a list of norm, swiglu, ffn, "
                  "attention, block");
    EXPECT_EQ(recompute_name(plan), "full");
  }
}

TEST(Plan, CheckpointsTheFirstLayersOrEveryNth) {
  Plan plan;
  plan.ckpt_layers = 2;
  EXPECT_TRUE(plan.checkpointed(0) && plan.checkpointed(1));
  EXPECT_FALSE(plan.checkpointed(2));
  plan.ckpt_stride = 3;
  EXPECT_TRUE(plan.checkpointed(0) && plan.checkpointed(3));
  EXPECT_FALSE(plan.checkpointed(1) || plan.checkpointed(6));
  plan.recompute = Recompute::kNone;
  EXPECT_FALSE(plan.checkpointed(0));
}

TEST(Plan, ShardGroupFollowsTheStrategy) {
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kDdp, 64), 8), 1);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kSingle, 1), 8), 1);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kYafsdp, 64), 8), 64);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kZero1, 64, 64), 8), 64);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kHsdp, 64), 8), 8);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kHsdp, 4), 8), 4);
  EXPECT_EQ(resolved_shard_group(plan_with(Strategy::kHsdp, 64, 32), 8), 32);
}

TEST(Plan, AcceptsWhatMakesSense) {
  EXPECT_EQ(problem_of(plan_with(Strategy::kYafsdp, 256)), "accepted");
  EXPECT_EQ(problem_of(plan_with(Strategy::kFsdp1, 256, 256)), "accepted");
  EXPECT_EQ(problem_of(plan_with(Strategy::kHsdp, 96, 8)), "accepted");
  EXPECT_EQ(problem_of(plan_with(Strategy::kFsdp2, 6)), "accepted");  // part of one node
  EXPECT_EQ(problem_of(plan_with(Strategy::kSingle, 1, 1)), "accepted");
  Plan plan = plan_with(Strategy::kFsdp1, 8);
  plan.ckpt_layers = 80;
  EXPECT_EQ(problem_of(plan), "accepted");
  plan.ckpt_layers = 27;
  plan.ckpt_stride = 3;
  EXPECT_EQ(problem_of(plan), "accepted");
}

TEST(Plan, ContradictionsNameTheKnob) {
  EXPECT_EQ(problem_of(plan_with(Strategy::kYafsdp, 12)),
            "gpus is 12, expected a multiple of the 8 GPUs of a node: 8 or 16");
  EXPECT_EQ(problem_of(plan_with(Strategy::kYafsdp, 0)), "gpus is 0, expected 1 to 1048576");
  EXPECT_EQ(problem_of(plan_with(Strategy::kSingle, 8)),
            "gpus is 8, expected 1 for the strategy single");
  EXPECT_EQ(problem_of(plan_with(Strategy::kDdp, 8, 8)),
            "shard_group is 8, but the strategy ddp shards nothing, expected 0 or 1");
  EXPECT_EQ(
      problem_of(plan_with(Strategy::kFsdp1, 64, 8)),
      "shard_group is 8, but the strategy fsdp1 shards over all 64 GPUs, expected 0, 64 or the "
      "strategy hsdp");
  EXPECT_EQ(problem_of(plan_with(Strategy::kHsdp, 64, 48)),
            "shard_group is 48, expected a divisor of the 64 GPUs");
  EXPECT_EQ(problem_of(plan_with(Strategy::kHsdp, 24, 12)),
            "shard_group is 12, expected a divisor or a multiple of the 8 GPUs of a node");
  EXPECT_EQ(problem_of(plan_with(Strategy::kHsdp, 64, -8)),
            "shard_group is -8, expected 0 (the strategy's own) or more");

  const auto changed = [](auto change) {
    Plan plan = plan_with(Strategy::kYafsdp, 8);
    change(plan);
    return problem_of(plan);
  };
  EXPECT_EQ(changed([](Plan& p) { p.ckpt_layers = 81; }),
            "ckpt_layers is 81, expected 0 to 80, the layers of the model");
  EXPECT_EQ(changed([](Plan& p) {
              p.ckpt_layers = 41;
              p.ckpt_stride = 2;
            }),
            "ckpt_layers is 41, expected 0 to 40, the layers of the model that a ckpt_stride of 2 "
            "reaches");
  EXPECT_EQ(changed([](Plan& p) { p.ckpt_stride = 0; }), "ckpt_stride is 0, expected 1 to 80");
  EXPECT_EQ(changed([](Plan& p) {
              p.ckpt_layers = 4;
              p.recompute = Recompute::kNone;
            }),
            "ckpt_layers is 4, but recompute is none, expected 0 or another recompute");
  EXPECT_EQ(changed([](Plan& p) { p.recompute = Recompute::kPieces; }),
            "recompute names no piece, expected some of norm, swiglu, ffn, attention, block");
  EXPECT_EQ(changed([](Plan& p) { p.seq_len = 0; }), "seq_len is 0, expected 1 to 16777216");
  EXPECT_EQ(changed([](Plan& p) { p.micro_batch = -1; }),
            "micro_batch is -1, expected 1 to 1048576");
  EXPECT_EQ(changed([](Plan& p) { p.grad_accum = 0; }), "grad_accum is 0, expected 1 to 1048576");
  EXPECT_EQ(changed([](Plan& p) { p.buffers = 0; }), "buffers is 0, expected 1 to 1024");
  EXPECT_EQ(changed([](Plan& p) { p.prefetch = -1; }), "prefetch is -1, expected 0 to 1024");
  EXPECT_EQ(changed([](Plan& p) { p.stack.clear(); }),
            "stack is empty, expected the name of a stack");
}

TEST(Plan, ChecksTheSequenceAgainstTheModel) {
  Model model;
  model.layers = 32;
  model.hidden = 4096;
  model.heads = model.kv_heads = 32;
  model.head_dim = 128;
  model.ffn = 14336;
  model.vocab = 32000;
  model.max_positions = 32768;
  Plan plan = plan_with(Strategy::kYafsdp, 8);
  plan.seq_len = 65536;  // RoPE extends
  const auto problem = [&] { return refusal_of([&] { check_plan(plan, model, 8); }); };
  EXPECT_EQ(problem(), "accepted");
  plan.seq_len = 4096;
  EXPECT_EQ(problem(), "accepted");
  model.position = Position::kLearned;
  model.max_positions = 2048;
  EXPECT_EQ(problem(),
            "seq_len is 4096, but the model learned 2048 positions, expected at most 2048");
  model.position = Position::kAlibi;
  plan.seq_len = 1 << 24;
  EXPECT_EQ(problem(), "accepted");
  plan.attention = AttentionKind::kEager;
  EXPECT_EQ(problem(),
            "seq_len 16777216 with micro_batch 1 is too much for one step of this model, "
            "expected fewer tokens");
}

TEST(Plan, HugeStepsAreRefusedBeforeTheyOverflow) {
  Model model;
  model.layers = 90;
  model.hidden = 262144;
  model.heads = model.kv_heads = 2048;
  model.head_dim = 128;
  model.ffn = 1 << 20;
  model.vocab = 256000;
  model.max_positions = 1 << 20;
  Plan plan = plan_with(Strategy::kYafsdp, 8);
  plan.grad_accum = 1 << 20;
  check_model(model);
  EXPECT_EQ(refusal_of([&] { check_plan(plan, model, 8); }),
            "grad_accum is 1048576, too much for one step of this model, expected at most 1261");
}

}  // namespace
}  // namespace shardwright
