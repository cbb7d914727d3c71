// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "sim/cost/cost.h"
#include "sim/explain/explain.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"
#include "tests/support/not_empty.h"

namespace shardwright::sim {
namespace {

const PartTimes& part(const StepParts& parts, StepPart which) {
  return parts[static_cast<std::size_t>(which)];
}

/// One operation of each kind that matters here, run once each.
Schedule one_of_each() {
  const auto op = [](OpKind kind, Phase phase, WorkKind work) {
    Op made;
    made.kind = kind;
    made.phase = phase;
    made.work.kind = work;
    return made;
  };
  Schedule schedule;
  schedule.streams = {{.name = "compute"}, {.name = "communication"}};
  schedule.ops = {op(OpKind::kAllGather, Phase::kForward, WorkKind::kCollective),
                  op(OpKind::kQkvProjection, Phase::kForward, WorkKind::kGemm),
                  op(OpKind::kAttention, Phase::kForward, WorkKind::kAttention),
                  op(OpKind::kNorm, Phase::kBackward, WorkKind::kMemory),
                  op(OpKind::kReduceScatter, Phase::kReduce, WorkKind::kCollective),
                  op(OpKind::kOptimizer, Phase::kOptimizer, WorkKind::kMemory)};
  schedule.blocks = {{.op_count = 6, .repeats = 1}};
  schedule.sections = {{.block_count = 1, .repeats = 1}};
  schedule.layers = 1;
  return schedule;
}

constexpr Nanoseconds kMs = 1'000'000;

/// gather 0-10, gemm 10-30, (host gap) attention 35-45, (gap, reduction from 50) norm 60-80,
/// reduction 50-100, optimizer 102-110, step 115.
Timeline known_timeline() {
  Timeline timeline;
  const auto add = [&](OpId id, Nanoseconds begin, Nanoseconds end) {
    timeline.spans.push_back({.id = id, .begin_ns = begin * kMs, .end_ns = end * kMs});
  };
  add(0, 0, 10);
  add(1, 10, 30);
  add(2, 35, 45);
  add(3, 60, 80);
  add(4, 50, 100);
  add(5, 102, 110);
  timeline.step_ns = 115 * kMs;
  return timeline;
}

TEST(StepParts, SplitAStepIntoKernelsAndWaits) {
  const StepParts parts = part_times(one_of_each(), known_timeline());
  const PartTimes& forward = part(parts, StepPart::kForward);
  EXPECT_NEAR(forward.products_s, 20e-3, 1e-12);
  EXPECT_NEAR(forward.attention_s, 10e-3, 1e-12);
  EXPECT_NEAR(forward.kernels_s, 30e-3, 1e-12);
  EXPECT_NEAR(forward.awaits_host_s, 5e-3, 1e-12);
  EXPECT_NEAR(forward.gathers_s, 10e-3, 1e-12);
  EXPECT_EQ(forward.gathers, 1);

  const PartTimes& backward = part(parts, StepPart::kBackward);
  EXPECT_NEAR(backward.memory_bound_s, 20e-3, 1e-12);
  EXPECT_NEAR(backward.awaits_communication_s, 10e-3, 1e-12);
  EXPECT_NEAR(backward.awaits_host_s, 5e-3, 1e-12);
  EXPECT_EQ(backward.reductions, 1);
  EXPECT_EQ(backward.bound(), Bound::kCommunication);

  EXPECT_NEAR(part(parts, StepPart::kOptimizer).total_s(), 8e-3, 1e-12);
  // The first gather, the reduction's tail and what follows: nothing hides them.
  const PartTimes& ends = part(parts, StepPart::kEnds);
  EXPECT_NEAR(ends.awaits_communication_s, 10e-3 + 20e-3, 1e-12);
  EXPECT_NEAR(ends.awaits_host_s, 2e-3 + 5e-3, 1e-12);
}

TEST(StepParts, CountOverlappingKernelsOnce) {
  Timeline timeline = known_timeline();
  timeline.spans[2] = {.id = 2, .stream = 1, .begin_ns = 20 * kMs, .end_ns = 45 * kMs};
  const PartTimes forward = part(part_times(one_of_each(), timeline), StepPart::kForward);
  EXPECT_NEAR(forward.kernels_s, 35e-3, 1e-12);
  EXPECT_EQ(forward.awaits_host_s, 0);
}

TEST(StepParts, NameWhatBoundsThem) {
  PartTimes times;
  EXPECT_EQ(times.bound(), Bound::kKernels);
  times.kernels_s = 1;
  times.awaits_communication_s = 0.02;
  EXPECT_EQ(times.bound(), Bound::kKernels);
  times.awaits_host_s = 0.1;
  EXPECT_EQ(times.bound(), Bound::kHost);
  times.awaits_communication_s = 0.2;
  EXPECT_EQ(times.bound(), Bound::kCommunication);
}

// Whatever the strategy, every instant of the step is in exactly one part.
TEST(StepParts, AddUpToThePredictedStep) {
  Model model;
  model.name = "small";
  model.layers = 6;
  model.hidden = 2048;
  model.heads = model.kv_heads = 16;
  model.head_dim = 128;
  model.ffn = 5504;
  model.vocab = 32000;
  model.max_positions = 4096;
  for (const Strategy strategy :
       {Strategy::kYafsdp, Strategy::kFsdp1, Strategy::kFsdp2, Strategy::kDdp, Strategy::kZero3}) {
    Predictor predictor(model, profiles::load_profile("dgx-a100-80g", "hf-eager"));
    Plan plan;
    plan.strategy = strategy;
    plan.gpus = 32;
    plan.grad_accum = 2;
    plan.ckpt_layers = 3;
    plan.stack = "hf-eager";
    Timeline timeline;
    PredictOptions options;
    options.timeline = &timeline;
    const Prediction prediction = predictor.predict(plan, options);
    const StepParts parts = part_times(predictor.program().stages.front(), timeline);
    double sum = 0, waits = 0;
    for (const PartTimes& each : not_empty(parts)) {
      sum += each.total_s();
      waits += each.awaits_communication_s;
      EXPECT_NEAR(each.kernels_s, each.products_s + each.attention_s + each.memory_bound_s, 1e-9);
    }
    // Parts are of one rank alone; what many ranks lose by waiting for the slowest comes on top.
    const double lost =
        prediction.time.iteration_s * (1 - 1 / scale_factor(predictor.profile(), plan));
    EXPECT_NEAR(sum + lost, prediction.time.iteration_s, 1e-8) << name_of(strategy);
    EXPECT_NEAR(waits + lost, prediction.time.exposed_communication_s, 1e-3 * sum)
        << name_of(strategy);
  }
}

}  // namespace
}  // namespace shardwright::sim
