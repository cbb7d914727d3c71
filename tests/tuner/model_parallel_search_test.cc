// SPDX-License-Identifier: Apache-2.0
// The search over model-parallel plans loses nothing by what it prunes: on small spaces every plan
// is predicted in full and none that fits is better than the answer. And its bound is one, its
// answer does not depend on threads, its front has no plan too many, its space no plan twice.
#include "tuner/model_parallel_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "profiles/data_dir.h"
#include "sim/core/error.h"
#include "sim/core/hf_config.h"
#include "sim/core/plan_json.h"
#include "sim/parallel/parallel_step.h"
#include "sim/predict.h"
#include "tests/tuner/models.h"
#include "tuner/candidates.h"
#include "tuner/scenarios.h"

namespace shardwright::tuner {
namespace {

using ::testing::HasSubstr;

struct SmallSearch {
  const char* name;
  const char* model;
  std::int64_t layers;
  const char* cluster;
  const char* stack;
  std::int64_t gpus, seq_len, global_batch;
  double memory_gib;  // of a GPU
  bool allows = false;
};

void PrintTo(const SmallSearch& c, std::ostream* out) {
  *out << c.name;
}

struct Small {
  Model model;
  std::vector<Scenario> scenarios;
  Request request;
  ModelParallelSpace space;

  explicit Small(const SmallSearch& c) : model(model_of(c.model, c.layers)) {
    profiles::Profile profile = profiles::load_profile(c.cluster, c.stack);
    profile.cluster.gpu.memory_bytes = static_cast<Bytes>(c.memory_gib * kGiB);
    scenarios = {as_predicted(profile)};
    request.gpus = c.gpus;
    request.seq_len = c.seq_len;
    request.global_batch = c.global_batch;
    request.allow_bf16_moments = c.allows;
    if (c.allows) request.allowed_precisions = {Precision::kFp8};
    space = model_parallel_space(request, model, profile);
  }
  const profiles::Profile& profile() const { return scenarios.front().profile; }
  ModelParallelSearch search(int threads = 1) const {
    SearchOptions options;
    options.threads = threads;
    return ModelParallelSearch(model, scenarios, space, options);
  }
  std::vector<Plan> every_plan() const {
    std::vector<Plan> plans;
    for (const ParallelLayout& layout : space.layouts) {
      if (space.recomputes_nothing) plans.push_back(space.plan(layout));
      for (const Recomputation& one : space.recomputations) {
        for (std::int64_t step = 1; step <= space.steps(layout, one); ++step)
          plans.push_back(space.plan(layout, one, step));
      }
    }
    return plans;
  }
};

class ModelParallelSpaces : public ::testing::TestWithParam<SmallSearch> {};

TEST_P(ModelParallelSpaces, NoPlanOfTheSpaceIsBetterThanTheAnswer) {
  const Small small(GetParam());
  ModelParallelSearch search = small.search();
  const std::vector<Found> found = search.best(1);
  sim::Predictor predictor(small.model, small.profile());
  double best = std::numeric_limits<double>::infinity();
  std::int64_t misfits = 0, recomputing = 0;
  const std::vector<Plan> plans = small.every_plan();
  for (const Plan& plan : plans) {
    const sim::Prediction p = predictor.predict(plan);
    misfits += p.memory.fits ? 0 : 1;
    if (!p.memory.fits) continue;
    best = std::min(best, p.time.iteration_s / tokens_per_step(plan));
  }
  ASSERT_EQ(found.size(), 1U);
  EXPECT_DOUBLE_EQ(found.front().score, best);
  EXPECT_TRUE(found.front().prediction.memory.fits);
  recomputing = found.front().plan().ckpt_layers;
  EXPECT_EQ(std::ssize(plans), search.counts().considered);
  EXPECT_LT(search.counts().simulated, search.counts().considered / 2) << "it prunes";
  EXPECT_LE(search.counts().no_memory, misfits);
  RecordProperty("recomputed_layers", static_cast<int>(recomputing));
}

TEST_P(ModelParallelSpaces, TheBoundIsOne) {
  const Small small(GetParam());
  sim::ParallelEngine warm(small.model, small.profile());
  double closest = 0;
  for (const Plan& plan : small.every_plan()) {
    const double least = warm.least_step_s(plan);
    const double step = sim::ParallelEngine(small.model, small.profile()).run(plan).step_s;
    ASSERT_LE(least, step * (1 + 1e-12)) << plan_to_json(plan).dump();
    ASSERT_EQ(warm.run(plan).step_s, step)
        << "what is kept between plans: " << plan_to_json(plan).dump();
    closest = std::max(closest, least / step);
  }
  EXPECT_GT(closest, 0.9) << "a bound that says something";
}

TEST_P(ModelParallelSpaces, EveryPlanIsThereOnceAndLegal) {
  const Small small(GetParam());
  std::set<std::string> known;
  for (const Plan& plan : small.every_plan()) {
    EXPECT_TRUE(known.insert(plan_to_json(plan).dump()).second) << plan_to_json(plan).dump();
    EXPECT_NO_THROW(check_plan(plan, small.model, small.profile().cluster.gpus_per_node));
    EXPECT_EQ(plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum,
              *small.request.global_batch);
  }
}

TEST_P(ModelParallelSpaces, TheAnswerDoesNotDependOnThreads) {
  const Small small(GetParam());
  ModelParallelSearch one = small.search(1), two = small.search(2);
  const std::vector<Found> a = one.best(5), b = two.best(5);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].plan(), b[i].plan());
    EXPECT_EQ(a[i].score, b[i].score);
    EXPECT_GE(a[i].score, a[i > 0 ? i - 1 : 0].score);
    for (std::size_t j = 0; j < i; ++j) EXPECT_TRUE(different_layouts(a[i].plan(), a[j].plan()));
  }
  EXPECT_EQ(one.counts().simulated, two.counts().simulated);
  EXPECT_EQ(one.counts().no_memory, two.counts().no_memory);
}

TEST_P(ModelParallelSpaces, TheFrontFallsInMemoryAsItRisesInTime) {
  const Small small(GetParam());
  ModelParallelSearch search = small.search();
  const std::vector<Found> front = search.pareto();
  ASSERT_FALSE(front.empty());
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_GE(front[i].score, front[i - 1].score);
    EXPECT_LT(front[i].prediction.memory.total_bytes, front[i - 1].prediction.memory.total_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Small, ModelParallelSpaces,
    ::testing::Values(
        SmallSearch{"roomy", "llama-3-8b", 6, "dgx-h100", "megatron-core", 16, 4096, 16, 80},
        SmallSearch{"tight", "llama-3-70b", 6, "dgx-h100", "megatron-core", 8, 4096, 16, 24, true},
        SmallSearch{"torchtitan", "llama-3-8b", 8, "dgx-h100", "torch-compile", 8, 8192, 16, 20},
        SmallSearch{"experts", "mixtral-8x7b", 3, "dgx-h100", "megatron-core", 8, 4096, 8, 48},
        SmallSearch{"rack", "llama-3-8b", 4, "gb200-nvl72", "megatron-core", 144, 2048, 288, 40}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(ModelParallelSearch, TheBoundHoldsForEverySchedule) {
  const Model model = model_of("llama-3-8b", 16);
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  sim::ParallelEngine engine(model, profile);
  for (const PipelineKind kind :
       {PipelineKind::kGpipe, PipelineKind::kOneForwardOneBackward, PipelineKind::kInterleaved,
        PipelineKind::kZb1p, PipelineKind::kZbv, PipelineKind::kDualpipe}) {
    for (const std::int64_t accum : {8, 16, 64}) {
      Plan plan;
      plan.strategy = Strategy::kDistributedOptimizer;
      plan.stack = "megatron-core";
      plan.gpus = 32;
      plan.seq_len = 4096;
      plan.recompute = Recompute::kNone;
      plan.grad_accum = accum;
      plan.parallel.pp = 4;
      plan.parallel.tp = 2;
      plan.parallel.pp_schedule = kind;
      if (kind == PipelineKind::kInterleaved) plan.parallel.virtual_stages = 2;
      EXPECT_LE(engine.least_step_s(plan), engine.run(plan).step_s * (1 + 1e-12))
          << name_of(kind) << " " << accum;
    }
  }
}

class ModelParallelRequest : public ::testing::Test {
 protected:
  std::string refusal() const {
    try {
      (void)model_parallel_space(request, model, profile);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  Model model = model_of("llama-3-8b", 32);
  profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  ModelParallelRequest() {
    request.gpus = 64;
    request.seq_len = 4096;
    request.global_batch = 128;
  }
};

TEST_F(ModelParallelRequest, SizesThatCutUnevenlyAreNamedWithTheNearest) {
  request.parallel.tp = 64;
  EXPECT_THAT(refusal(), HasSubstr("tp is 64, which does not divide 32 heads"));
  request.parallel.tp = 6;
  EXPECT_THAT(refusal(), HasSubstr("tp is 6, which does not divide the 64 GPUs, expected 4 or 8"));
  request.parallel.tp = 2;
  EXPECT_EQ(refusal(), "");
  request.parallel.ep = 2;
  EXPECT_THAT(refusal(), HasSubstr("the model has no experts"));
  request.parallel.ep.reset();
  request.parallel.virtual_stages = 2;
  request.parallel.pp = 1;
  EXPECT_THAT(refusal(), HasSubstr("virtual_stages is 2, but pp is 1"));
}

TEST_F(ModelParallelRequest, WhatIsGivenIsHeldFixed) {
  request.parallel.tp = 4;
  request.parallel.pp = 2;
  request.micro_batch = 2;
  for (const ParallelLayout& layout : model_parallel_space(request, model, profile).layouts) {
    EXPECT_EQ(layout.tp, 4);
    EXPECT_EQ(layout.pp, 2);
    EXPECT_EQ(layout.micro_batch, 2);
  }
}

TEST_F(ModelParallelRequest, WithoutABatchOneThatAllReplicasShareIsAssumed) {
  request.global_batch.reset();
  request.gpus = 96;
  const ModelParallelSpace space = model_parallel_space(request, model, profile);
  EXPECT_GT(space.usual_global_batch, 0);
  EXPECT_EQ(space.usual_global_batch % 3, 0) << "replicas of 96 GPUs come in threes";
}

TEST_F(ModelParallelRequest, TypesThatTheGpuLacksAreNoChoice) {
  request.allowed_precisions = {Precision::kFp8, Precision::kNvfp4};
  const ModelParallelSpace space = model_parallel_space(request, model, profile);
  EXPECT_EQ(space.arithmetics.size(), 2U) << "an H100 has fp8 and no nvfp4";
}

TEST(Candidates, GainsWithinTheUncertaintyAreToldApart) {
  sim::Prediction model_parallel, plain;
  model_parallel.time.iteration_s = plain.time.iteration_s = 10;
  model_parallel.time.interval_s[1] = 13;
  plain.time.interval_s[1] = 12;
  const double uncertainty = std::exp(std::hypot(std::log(1.3), std::log(1.2)));
  EXPECT_FALSE(is_better_beyond_uncertainty(model_parallel, 10, plain, 10 * uncertainty * 0.99,
                                            Objective::kTime));
  EXPECT_TRUE(is_better_beyond_uncertainty(model_parallel, 10, plain, 10 * uncertainty * 1.01,
                                           Objective::kTime));
  EXPECT_FALSE(is_better_beyond_uncertainty(model_parallel, 10, plain, 100, Objective::kHeadroom));
  // What one machine does to both says nothing of which is faster.
  plain.time.interval_s[1] = 10 * std::exp(std::hypot(std::log(1.2), 0.3));
  plain.time.scale_half_width = 0.3;
  EXPECT_FALSE(is_better_beyond_uncertainty(model_parallel, 10, plain, 10 * uncertainty * 0.99,
                                            Objective::kTime));
  EXPECT_TRUE(is_better_beyond_uncertainty(model_parallel, 10, plain, 10 * uncertainty * 1.01,
                                           Objective::kTime));
}

TEST(Candidates, WhereDataParallelismWinsItsAnswerIsTheSameToTheDigit) {
  const Model model = model_of("llama-3-8b", 32);
  const profiles::Profile plain = profiles::load_profile("dgx-h100", "torch-compile");
  const profiles::Profile model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  request.gpus = 16;
  request.seq_len = 4096;
  request.global_batch = 64;
  const Tuning alone = tune(model, plain, request);
  const Tuning both = tune_all(model, {&plain, "", {{&plain, 0, Extent::kModelParallel}}}, request);
  ASSERT_FALSE(alone.top.empty());
  EXPECT_FALSE(both.model_parallel);
  ASSERT_EQ(alone.top.size(), both.top.size());
  for (std::size_t i = 0; i < alone.top.size(); ++i) {
    EXPECT_EQ(alone.top[i].plan(), both.top[i].plan());
    EXPECT_EQ(alone.top[i].score, both.top[i].score);
  }
  EXPECT_EQ(alone.counts.simulated, both.counts.simulated);
  ASSERT_TRUE(both.other);
  EXPECT_EQ(both.other->stack, "torch-compile");
  EXPECT_FALSE(both.other->best) << "none is better";
}

TEST(Candidates, TheLeastScoreIsTheAnswerWhoeverRunsIt) {
  const Model model = model_of("llama-3-8b", 32);
  const profiles::Profile torch = profiles::load_profile("dgx-h100", "torch-compile");
  const profiles::Profile megatron = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  request.gpus = 8;
  request.seq_len = 8192;
  request.global_batch = 64;
  const Tuning plain = tune(model, torch, request);
  const Tuning parallel = tune_all(model, {nullptr, "", {{&megatron, 0}}}, request);
  const Tuning all =
      tune_all(model, {&torch, "", {{&torch, 0, Extent::kModelParallel}, {&megatron, 0}}}, request);
  ASSERT_FALSE(plain.top.empty());
  ASSERT_LT(parallel.top.front().score, plain.top.front().score);
  EXPECT_LE(all.top.front().score, parallel.top.front().score);
  EXPECT_TRUE(all.model_parallel);
  ASSERT_TRUE(all.other && all.other->best);
  EXPECT_GT(all.other->cost, 0);
  // A gain that both predictions are uncertain of is said beside the answer.
  EXPECT_EQ(all.other->within_uncertainty,
            !is_better_beyond_uncertainty(all.top.front().prediction, all.top.front().score,
                                          plain.top.front().prediction, plain.top.front().score,
                                          Objective::kTime));
}

TEST(Candidates, FewerSequencesThanGpusDivideTheModel) {
  const Model model = model_of("llama-3-8b", 32);
  const profiles::Profile plain = profiles::load_profile("dgx-h100", "torch-compile");
  const profiles::Profile model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  request.gpus = 64;
  request.seq_len = 4096;
  request.global_batch = 32;
  const Tuning answer = tune_all(model, {&plain, "", {{&model_parallel, 0}}}, request);
  EXPECT_TRUE(answer.model_parallel);
  ASSERT_FALSE(answer.top.empty());
  EXPECT_GT(answer.top.front().plan().parallel.replica(), 1);
  ASSERT_TRUE(answer.other);
  EXPECT_THAT(answer.other->refusal, HasSubstr("32 sequences"));
  for (const KnobStep& step : answer.steps) {
    if (!step.judgement.fits) continue;
    const double again =
        sim::predict(model, model_parallel, step.judgement.prediction.plan).time.iteration_s;
    EXPECT_DOUBLE_EQ(step.judgement.prediction.time.iteration_s, again);
    EXPECT_TRUE(step.freedom != Freedom::kSearched || step.cost >= -1e-9)
        << step.knob << " " << step.to << " was in the space";
  }
}

/// An 8B model with long sequences on two nodes, by model-parallel frameworks.
struct LongSequences {
  Model model = model_of("llama-3-8b", 32);
  profiles::Profile model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;

  LongSequences() {
    request.gpus = 16;
    request.seq_len = 8192;
    request.global_batch = 64;
  }
  Tuning answer() const { return tune_all(model, {nullptr, "", {{&model_parallel, 0}}}, request); }
};

TEST(Candidates, StepsTrySettingsOfTheSoftwareThatTheSearchLeaves) {
  LongSequences asked;
  asked.request.parallel.tp = 8;
  const auto step_of = [&](const std::string& knob) -> std::optional<KnobStep> {
    for (KnobStep& step : asked.answer().steps) {
      if (step.knob == knob) return std::move(step);
    }
    return std::nullopt;
  };
  const std::optional<KnobStep> overlap = step_of("tp-overlap");
  ASSERT_TRUE(overlap);
  EXPECT_EQ(overlap->from + " to " + overlap->to, "none to userbuffers");
  EXPECT_EQ(overlap->freedom, Freedom::kSetting);
  EXPECT_EQ(overlap->judgement.prediction.plan.parallel.tp_overlap, TensorOverlap::kUserbuffers);
  EXPECT_LT(overlap->cost, 0);
  EXPECT_FALSE(step_of("dispatcher")) << "no experts";
  asked.request.parallel.tp_overlap = TensorOverlap::kNone;
  EXPECT_EQ(step_of("tp-overlap")->freedom, Freedom::kFixed);
}

// Each combination searched alone: none is better than the answer.
TEST(Candidates, AllowedSettingsOfTheSoftwareAreAllTried) {
  const Model model = model_of("mixtral-8x7b", 8);
  const profiles::Profile model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  request.gpus = 32;
  request.seq_len = 4096;
  request.global_batch = 64;
  const auto answer_of = [&](const Request& asked) {
    return tune_all(model, {nullptr, "", {{&model_parallel, 0}}}, asked);
  };
  double best = std::numeric_limits<double>::infinity();
  for (const TensorOverlap overlap : {TensorOverlap::kNone, TensorOverlap::kUserbuffers}) {
    for (const Dispatcher dispatcher : {Dispatcher::kAllGather, Dispatcher::kAllToAll,
                                        Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
      Request held = request;
      held.parallel.tp_overlap = overlap;
      held.parallel.dispatcher = dispatcher;
      best = std::min(best, answer_of(held).top.at(0).score);
    }
  }
  const double usual = answer_of(request).top.at(0).score;
  request.allow_software = true;
  const Tuning answer = answer_of(request);
  ASSERT_FALSE(answer.top.empty());
  EXPECT_DOUBLE_EQ(answer.top.front().score, best);
  EXPECT_LT(best, usual);
  for (const KnobStep& step : answer.steps) EXPECT_NE(step.freedom, Freedom::kFixed) << step.knob;

  request.parallel.dispatcher = Dispatcher::kAllGather;
  EXPECT_EQ(answer_of(request).top.at(0).plan().parallel.dispatcher, Dispatcher::kAllGather);
}

TEST(Candidates, ModelParallelAnswersSayWhetherTheyHoldWhenThePredictionWasTooKind) {
  const LongSequences asked;
  const Tuning answer = asked.answer();
  ASSERT_TRUE(answer.robustness);
  const std::vector<Scenario> cases = adverse_scenarios(asked.model_parallel);
  ASSERT_EQ(answer.robustness->cases.size(), cases.size());
  ASSERT_EQ(answer.robustness->stress.size(), answer.top.size());
  for (std::size_t c = 0; c < cases.size(); ++c) {
    ASSERT_TRUE(answer.robustness->cases[c].best);
    const double best = answer.robustness->cases[c].best->score;
    for (std::size_t i = 0; i < answer.top.size(); ++i) {
      const Stress& stress = answer.robustness->stress[i][c];
      if (stress.fits) {
        EXPECT_GE(stress.score, best * (1 - 1e-9));
      }
      EXPECT_NEAR(stress.behind, stress.score / best - 1, 1e-12);
    }
  }
  // Slower links cost a model-parallel plan something.
  EXPECT_GT(answer.robustness->stress[0][1].score, answer.top[0].score);
}

TEST(Candidates, WhenNothingFitsTheWaysOutDo) {
  const Model model = model_of("llama-3-70b", 80);
  const profiles::Profile model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  Request request;
  request.gpus = 8;
  request.seq_len = 4096;
  request.global_batch = 64;
  const Tuning answer = tune_all(model, {nullptr, "", {{&model_parallel, 0}}}, request);
  EXPECT_TRUE(answer.top.empty());
  ASSERT_TRUE(answer.advice);
  ASSERT_TRUE(answer.advice->closest);
  EXPECT_FALSE(answer.advice->closest->fits);
  ASSERT_FALSE(answer.advice->ways.empty());
  for (const Way& way : answer.advice->ways)
    EXPECT_TRUE(way.plan.prediction.memory.fits) << way.what;
}

}  // namespace
}  // namespace shardwright::tuner
