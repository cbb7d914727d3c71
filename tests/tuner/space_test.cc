// SPDX-License-Identifier: Apache-2.0
// The space holds every plan that differs, once; and says what contradicts itself.
#include "tuner/search/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/hf/config.h"
#include "sim/pipeline/step_program.h"
#include "sim/strategies/lower.h"
#include "tests/support/not_empty.h"
#include "tests/tuner/every_plan.h"

namespace shardwright::tuner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Model llama() {
  Model model = load_model(profiles::data_dir() / "models", "llama-3-8b");
  model.layers = 6;
  return model;
}

/// Whether two schedules are the same operations and memory.
bool same_schedule(const Schedule& a, const Schedule& b) {
  if (a.ops.size() != b.ops.size() || a.memory.size() != b.memory.size() ||
      a.blocks.size() != b.blocks.size() || a.streams.size() != b.streams.size())
    return false;
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    const Op &x = a.ops[i], &y = b.ops[i];
    if (x.kind != y.kind || x.stream != y.stream || x.work.bytes != y.work.bytes) return false;
    for (int w = 0; w < kMaxWaits; ++w) {
      if (x.waits[w].name != y.waits[w].name || x.waits[w].offset != y.waits[w].offset)
        return false;
    }
  }
  for (std::size_t i = 0; i < a.persistent.size(); ++i) {
    if (a.persistent[i].bytes != b.persistent[i].bytes) return false;
  }
  return true;
}

Schedule lowered(Plan plan, const profiles::Profile& profile, Strategy strategy) {
  plan.strategy = strategy;
  return sim::executed_step(llama(), plan, profile.stack, profile.cluster.gpus_per_node)
      .stages.front();
}

TEST(Space, StrategiesThatAStackExecutesAlikeAreTriedOnce) {
  Plan plan;
  plan.gpus = 16;
  for (const char* stack : {"native", "hf-eager", "torch-eager"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    for (int a = 1; a < kStrategyCount; ++a) {
      for (int b = a + 1; b < kStrategyCount; ++b) {
        const auto x = static_cast<Strategy>(a), y = static_cast<Strategy>(b);
        if (!sim::has_schedule(x, profile.stack) || !sim::has_schedule(y, profile.stack)) continue;
        const bool alike = executed_as(x, profile.stack) == executed_as(y, profile.stack);
        EXPECT_EQ(same_schedule(lowered(plan, profile, x), lowered(plan, profile, y)), alike)
            << stack << ": " << name_of(x) << " and " << name_of(y);
      }
    }
  }
}

TEST(Space, BuffersVaryWhereTheyChangeTheSchedule) {
  Plan two, three;
  two.gpus = three.gpus = 16;
  three.buffers = 3;
  three.prefetch = 2;
  for (const char* stack : {"native", "hf-eager"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    for (int s = 1; s < kStrategyCount; ++s) {
      const auto strategy = static_cast<Strategy>(s);
      if (!sim::has_schedule(strategy, profile.stack)) continue;
      EXPECT_EQ(same_schedule(lowered(two, profile, strategy), lowered(three, profile, strategy)),
                !uses_buffers(strategy, profile.stack))
          << stack << ": " << name_of(strategy);
    }
  }
}

TEST(Space, BuffersAreFilledUnlessPrefetchIsFixed) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  const Model model = llama();
  Request request;
  request.gpus = 16;
  request.global_batch = 64;
  std::set<int> buffers;
  for (const Plan& plan : not_empty(space_of(request, model, profile).plans)) {
    EXPECT_EQ(plan.prefetch, plan.buffers - 1);
    buffers.insert(plan.buffers);
  }
  EXPECT_GT(buffers.size(), 1u);
  request.prefetch = 0;
  for (const Plan& plan : not_empty(space_of(request, model, profile).plans))
    EXPECT_EQ(plan.prefetch, 0);
}

// More cannot be gathered ahead than there are buffers for; less can.
TEST(Space, PrefetchBeyondTheBuffersChangesNoSchedule) {
  Plan one, none, four;
  one.gpus = none.gpus = four.gpus = 16;
  none.prefetch = 0;
  four.prefetch = 4;
  for (const char* stack : {"native", "hf-eager", "torch-eager"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    for (int s = 1; s < kStrategyCount; ++s) {
      const auto strategy = static_cast<Strategy>(s);
      // Megatron's own are not searched beside layers of other frameworks.
      if (!sim::has_schedule(strategy, profile.stack) || info_of(strategy).bucketed) continue;
      EXPECT_TRUE(same_schedule(lowered(one, profile, strategy), lowered(four, profile, strategy)));
      EXPECT_EQ(same_schedule(lowered(one, profile, strategy), lowered(none, profile, strategy)),
                !uses_buffers(strategy, profile.stack))
          << stack << ": " << name_of(strategy);
    }
  }
}

struct OwnQuestion {
  const char* model;
  const char* cluster;
  std::int64_t gpus, seq_len;
};

// Of this project's framework the space is what `run` takes, in every way that it takes.
TEST(Space, OwnPlansAreThoseThatRunTakes) {
  constexpr OwnQuestion kQuestions[] = {
      {"llama-3.2-1b", "dgx-h100", 1, 2048},      {"llama-3.2-1b", "l4-pcie8", 8, 4096},
      {"qwen2.5-1.5b", "l40s-pcie8", 4, 8192},    {"llama-3.2-3b", "dgx-h100", 8, 131072},
      {"gpt-neox-20b", "p4d", 24, 2048},          {"llama-3-8b", "dgx-h100", 16, 131072},
      {"gemma-7b", "dgx-h100", 16, 8192},         {"llama-2-13b", "a40-pcie8", 16, 4096},
      {"mpt-30b", "a100-80g-8xhdr200", 64, 2048}, {"qwen3-32b", "dgx-h100", 32, 16384},
      {"llama-3-70b", "dgx-h100", 64, 32768},     {"llama-3.1-405b", "dgx-h100", 512, 8192}};
  std::int64_t tp = 1, pp = 1, chunks = 1, low = 0;
  std::set<PipelineKind> schedules;
  for (const OwnQuestion& question : kQuestions) {
    const Model model = load_model(profiles::data_dir() / "models", question.model);
    const profiles::Profile profile = profiles::load_profile(question.cluster, "native");
    Request request;
    request.gpus = question.gpus;
    request.seq_len = question.seq_len;
    if (question.gpus % 16 == 0) request.allowed_precisions = {Precision::kFp8};
    for (const Plan& plan : not_empty(space_of(request, model, profile).plans)) {
      ASSERT_EQ(why_not_run(model, plan), "") << question.model;
      const Parallelism& p = plan.parallel;
      tp = std::max(tp, p.tp);
      pp = std::max(pp, p.pp);
      chunks = std::max(chunks, p.virtual_stages);
      if (p.pp > 1) schedules.insert(p.schedule());
      low += plan.numerics.precision == Precision::kFp8 ? 1 : 0;
    }
  }
  EXPECT_EQ(tp, 8);
  EXPECT_GE(pp, 64);
  EXPECT_GE(chunks, 8);
  EXPECT_GT(low, 0);
  EXPECT_THAT(schedules, ::testing::IsSupersetOf({PipelineKind::kOneForwardOneBackward,
                                                  PipelineKind::kInterleaved, PipelineKind::kZb1p,
                                                  PipelineKind::kZbv}));
}

TEST(Space, WhatRunRefusesOfAModelIsSaid) {
  const Model model = load_model(profiles::data_dir() / "models", "mistral-7b");
  Request request;
  request.seq_len = 8192;
  try {
    (void)space_of(request, model, profiles::load_profile("dgx-h100", "native"));
    FAIL() << "there are plans";
  } catch (const InvalidPlan& error) {
    EXPECT_THAT(error.what(), HasSubstr("a window of 4096 tokens"));
  }
}

TEST(Space, EveryPlanIsThereOnce) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  Request request;
  request.gpus = 32;
  request.global_batch = 128;
  request.allow_bf16_moments = true;
  request = sharing_data_alone(request);
  const Model model = llama();
  std::set<std::string> seen;
  for (const Plan& plan : not_empty(every_plan(space_of(request, model, profile)))) {
    EXPECT_EQ(plan.micro_batch * plan.grad_accum * plan.gpus, 128);
    EXPECT_TRUE(plan.recompute == Recompute::kNone ? plan.ckpt_layers == 0 : plan.ckpt_layers > 0);
    std::string text = std::string(name_of(plan.strategy)) + recompute_name(plan);
    for (const std::int64_t value :
         {plan.shard_group, plan.micro_batch, plan.ckpt_layers, std::int64_t{plan.buffers},
          bytes_of(plan.moment_dtype), std::int64_t{plan.attention == AttentionKind::kEager}})
      text += " " + std::to_string(value);
    EXPECT_TRUE(seen.insert(text).second) << text;
  }
  EXPECT_GT(seen.size(), 1000U);
}

TEST(Space, ArithmeticChangesOnlyWhereAllowed) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  const Model model = llama();
  Request request;
  for (const bool allowed : {false, true}) {
    request.allow_bf16_reduce = request.allow_bf16_master = request.allow_bf16_moments = allowed;
    int most = 0;
    for (const Plan& plan : not_empty(space_of(request, model, profile).plans))
      most = std::max(most, arithmetic_changes(plan));
    EXPECT_EQ(most, allowed ? 3 : 0);
  }
}

TEST(Space, WhatIsGivenIsHeldFixed) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  const Model model = llama();
  Request request;
  request.gpus = 16;
  request.strategies = {Strategy::kHsdp};
  request.shard_group = 8;
  request.micro_batch = 3;
  request.ckpt_layers = 4;
  request.recompute = Recomputation{Recompute::kSelectiveOp, 0};
  request.buffers = 5;
  request.attention = AttentionKind::kFlash;
  request.reduce_dtype = DType::kBf16;
  const std::vector<Plan> plans = every_plan(space_of(request, model, profile));
  ASSERT_EQ(plans.size(), 1U);
  const Plan& plan = plans.front();
  EXPECT_EQ(plan.strategy, Strategy::kHsdp);
  EXPECT_EQ(plan.shard_group, 8);
  EXPECT_EQ(plan.micro_batch, 3);
  EXPECT_EQ(plan.ckpt_layers, 4);
  EXPECT_EQ(plan.recompute, Recompute::kSelectiveOp);
  EXPECT_EQ(plan.buffers, 5);
  EXPECT_EQ(plan.attention, AttentionKind::kFlash);
  EXPECT_EQ(plan.reduce_dtype, DType::kBf16);
}

TEST(Space, WhatLayersRecomputeIsDifferentEachTime) {
  const Model model = llama();
  const profiles::Profile native = profiles::load_profile("dgx-h100", "native");
  const std::vector<Recomputation> own = recomputations_of(model, Plan{}, native.stack);
  EXPECT_GT(own.size(), 8U);
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(own[i] == own[j]);
  }
  const profiles::Profile eager = profiles::load_profile("dgx-h100", "hf-eager");
  EXPECT_EQ(recomputations_of(model, Plan{}, eager.stack).size(), 1U);
}

class Contradiction : public ::testing::Test {
 protected:
  std::string message() {
    try {
      (void)space_of(request_, model_, profile_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  Request request_;
  const Model model_ = llama();
  const profiles::Profile profile_ = profiles::load_profile("dgx-h100", "native");
};

TEST_F(Contradiction, GlobalBatchSaysTheNearestThatDivide) {
  request_ = sharing_data_alone(request_);
  request_.gpus = 16;
  request_.global_batch = 100;
  EXPECT_THAT(message(), AllOf(HasSubstr("--global-batch is 100"), HasSubstr("96 or 112")));
  request_.global_batch = 5;
  EXPECT_THAT(message(), HasSubstr("at least 16"));
}

TEST_F(Contradiction, MicroBatchTimesAccumulationIsTheBatch) {
  request_.global_batch = 64;
  request_.micro_batch = 2;
  request_.grad_accum = 2;
  EXPECT_THAT(message(), AllOf(HasSubstr("32 sequences"), HasSubstr("--global-batch is 64")));
  request_.grad_accum.reset();
  request_.micro_batch = 3;
  EXPECT_THAT(message(), AllOf(HasSubstr("--micro-batch is 3"), HasSubstr("divisor of the 8")));
}

TEST_F(Contradiction, CheckpointedLayersAndRecompute) {
  request_.ckpt_layers = 7;
  EXPECT_THAT(message(), AllOf(HasSubstr("--ckpt-layers is 7"), HasSubstr("0 to 6")));
  request_.ckpt_layers = 2;
  request_.recompute = Recomputation{Recompute::kNone, 0};
  EXPECT_THAT(message(), HasSubstr("--recompute is none"));
}

TEST_F(Contradiction, StrategyAndShardGroup) {
  request_.gpus = 16;
  request_.strategies = {Strategy::kYafsdp};
  request_.shard_group = 4;
  EXPECT_THAT(message(), AllOf(HasSubstr("shard_group is 4"), HasSubstr("yafsdp")));
  request_.strategies = {Strategy::kSingle};
  request_.shard_group.reset();
  EXPECT_THAT(message(), HasSubstr("expected 1 for the strategy single"));
}

TEST_F(Contradiction, GpusThatAreNoWholeNodes) {
  request_.gpus = 12;
  EXPECT_THAT(message(), HasSubstr("gpus is 12"));
}

}  // namespace
}  // namespace shardwright::tuner
