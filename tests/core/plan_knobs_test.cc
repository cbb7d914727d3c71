// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_knobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refusal.h"

namespace shardwright {
namespace {

using ::testing::ElementsAre;
using testing::refusal_of;

constexpr std::int64_t kLayers = 80;

GivenKnobs read_plan_of(const std::vector<std::pair<std::string, std::string>>& words) {
  GivenKnobs knobs;
  for (const auto& [name, text] : words) plan_knob(name).read(knobs, "--" + name, text);
  return knobs;
}

std::string refusal(const std::string& name, const std::string& text) {
  GivenKnobs knobs;
  return refusal_of([&] { plan_knob(name).read(knobs, name + " in run.ini", text); });
}

// Nothing that a plan says is lost between a run file and the run that reads it.
TEST(PlanKnobs, WhatIsWrittenReadsBack) {
  Plan plan;
  plan.strategy = Strategy::kHsdp;
  plan.shard_group = 4;
  plan.seq_len = 4096;
  plan.micro_batch = 3;
  plan.grad_accum = 5;
  plan.ckpt_layers = 7;
  plan.recompute = Recompute::kPieces;
  plan.pieces = kPieceNorm | kPieceSwiglu;
  plan.param_dtype = DType::kFp32;
  plan.reduce_dtype = DType::kBf16;
  plan.moment_dtype = DType::kBf16;
  plan.buffers = 5;
  plan.prefetch = 2;
  plan.attention = AttentionKind::kEager;
  plan.loss_chunks = 8;
  plan.allocator = AllocatorKind::kExpandable;
  plan.deterministic = true;
  GivenKnobs knobs;
  for (const PlanKnob& knob : plan_knobs()) {
    // Knobs of model-parallel plans write nothing where the plan does not divide.
    const std::string written = knob.write ? knob.write(plan) : "";
    if (!written.empty()) knob.read(knobs, knob.name, written);
  }
  ASSERT_THAT(knobs.strategies, ElementsAre(Strategy::kHsdp));
  Plan again = with_knobs(Plan{}, knobs, kLayers);
  again.strategy = knobs.strategies.front();
  EXPECT_EQ(again, plan);
}

TEST(PlanKnobs, TheShapeOfSumsIsFeaturesAndUsesOfATiedEmbedding) {
  const GivenKnobs features = read_plan_of({{"sum-shape", "4,1,1"}});
  EXPECT_EQ(features.sum_features, 4);
  EXPECT_FALSE(features.sum_uses);
  const Plan plan = with_knobs(Plan{}, read_plan_of({{"sum-shape", "4,1,1,2"}}), kLayers);
  EXPECT_EQ(plan.sum_features, 4);
  EXPECT_EQ(plan.use_parts(), 2);
  EXPECT_EQ(plan_knob("sum-shape").write(plan), "4,1,1,2");
  Plan stages;
  EXPECT_EQ(stages.use_parts(), 1);
  stages.parallel.pp = 2;
  EXPECT_EQ(stages.use_parts(), 2);
  for (const char* wrong : {"4,1", "4,1,1,3", "4,1,1,2,", "4,2,1", "4,1,1,"}) {
    EXPECT_EQ(refusal("sum-shape", wrong),
              std::string("sum-shape in run.ini is ") + wrong +
                  ", expected F or F,1,1 or F,1,1,U with U 1 or 2: sums over tokens and the batch "
                  "follow the layout");
  }
}

TEST(PlanKnobs, OnlyWhatIsGivenChangesAPlan) {
  Plan plan;
  plan.ckpt_layers = 20;
  plan.prefetch = 0;
  EXPECT_EQ(with_knobs(plan, {}, kLayers), plan);
  plan.micro_batch = 4;
  EXPECT_EQ(with_knobs(Plan{plan}, read_plan_of({{"micro-batch", "4"}}), kLayers), plan);
}

TEST(PlanKnobs, MoreBuffersAreFilledAhead) {
  EXPECT_EQ(with_knobs({}, read_plan_of({{"buffers", "4"}}), kLayers).prefetch, 3);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"buffers", "4"}, {"prefetch", "1"}}), kLayers).prefetch,
            1);
}

TEST(PlanKnobs, LayersAndWhatTheyRecomputeComplementEachOther) {
  Plan none;
  none.recompute = Recompute::kNone;
  const Plan layers = with_knobs(none, read_plan_of({{"ckpt-layers", "8"}}), kLayers);
  EXPECT_EQ(layers.recompute, Recompute::kFull);
  EXPECT_EQ(layers.ckpt_layers, 8);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"recompute", "norm"}}), kLayers).ckpt_layers, kLayers);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"ckpt-layers", "all"}}), kLayers).ckpt_layers, kLayers);
  const Plan nothing = with_knobs({}, read_plan_of({{"ckpt-layers", "0"}}), kLayers);
  EXPECT_EQ(nothing.recompute, Recompute::kNone);
  EXPECT_EQ(recompute_name(with_knobs(layers, read_plan_of({{"recompute", "none"}}), kLayers)),
            "none");
}

TEST(PlanKnobs, ErrorsNameWhereTheValueStands) {
  EXPECT_EQ(refusal("micro-batch", "0"),
            "micro-batch in run.ini is 0, but it must be a whole number from 1 to 1048576.");
  EXPECT_EQ(refusal("param-dtype", "bf61"),
            "param-dtype in run.ini is 'bf61', but it must be one of fp32, bf16, did you mean "
            "'bf16'?");
  EXPECT_EQ(refusal("ckpt-layers", "some"),
            "ckpt-layers in run.ini is 'some', but it must be a whole number of at least 0, or "
            "all.");
  EXPECT_EQ(refusal("strategy", "ddp,ddp"),
            "strategy in run.ini is 'ddp,ddp', but it names ddp twice.");
  EXPECT_EQ(refusal("recompute", "ful"),
            "recompute in run.ini is 'ful', expected none, full, selective-op, or a list of norm, "
            "swiglu, ffn, attention, block.");
}

}  // namespace
}  // namespace shardwright
