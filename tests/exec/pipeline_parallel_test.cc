// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline are one rank that accumulates, to the bit.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/exec/staged_training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

Training pipeline(const Model& model, Strategy strategy, const StagedLayout& layout) {
  return staged(model, strategy, layout, false);
}

std::vector<StagedLayout> layouts() {
  using enum PipelineKind;
  return {{kOneForwardOneBackward, 1, 2},
          {kOneForwardOneBackward, 1, 4, 1, 1, 6},
          {kGpipe, 1, 2},
          {kInterleaved, 1, 2, 2},
          {kInterleaved, 1, 2, 3},
          {kZb1p, 1, 2},
          {kZb1p, 1, 4, 1, 1, 6},
          {kZbv, 1, 2, 2},
          {kOneForwardOneBackward, 2, 2, 1, 2},
          {kInterleaved, 2, 2, 2, 1},
          {kZb1p, 2, 2},
          {kZbv, 2, 2, 2}};
}

class Pipelines : public ::testing::TestWithParam<StagedLayout> {};

TEST_P(Pipelines, StagesAreOneRankThatAccumulates) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
    Training training = pipeline(tiny_llama(), Strategy::kYafsdp, GetParam());
    training.mode = mode;
    training.ignores_targets = true;
    training.loss_chunk_tokens = 10;
    SCOPED_TRACE(words_of(GetParam()));
    expect_as_without_parts(training);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Pipelines, ::testing::ValuesIn(layouts()), parameter_name);

TEST(PipelineParallel, OfEveryStrategy) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1,
        Strategy::kFsdp2, Strategy::kFsdp2NoReshard, Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
    SCOPED_TRACE(name_of(strategy));
    expect_as_without_parts(
        pipeline(tiny_qwen3(), strategy, {PipelineKind::kOneForwardOneBackward, 1, 2, 1, 2}));
  }
}

TEST(PipelineParallel, OfEveryFamily) {
  for (const Model& model :
       {tiny_qwen2(), tiny_gpt2(), tiny_mpt(), tiny_gpt_neox(), tiny_gemma2()}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      for (const StagedLayout& layout : {StagedLayout{PipelineKind::kInterleaved, 1, 2, 3},
                                         StagedLayout{PipelineKind::kZb1p, 1, 2}}) {
        SCOPED_TRACE(fmt::format("{} in {}, {}", model.family, name_of(dtype), words_of(layout)));
        Training training = pipeline(model, Strategy::kZero1, layout);
        training.plan.param_dtype = dtype;
        expect_as_without_parts(training);
      }
    }
  }
}

TEST(PipelineParallel, LeavesOfMoreRanksThanThereAre) {
  for (const StagedLayout& layout :
       {StagedLayout{PipelineKind::kZb1p, 2, 2}, StagedLayout{PipelineKind::kZbv, 2, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    Training training = pipeline(divisible(tiny_llama()), Strategy::kFsdp2, layout);
    training.model.vocab = 96;
    training.plan.sum_features = 4;
    training.plan.parallel.sp = layout.kind == PipelineKind::kZbv;
    expect_as_without_parts(training);
  }
}

TEST(PipelineParallel, RecomputesToTheSameBits) {
  for (const char* what : {"full", "selective-op", "ffn"}) {
    SCOPED_TRACE(what);
    Training training =
        pipeline(tiny_llama(), Strategy::kFsdp2, {PipelineKind::kOneForwardOneBackward, 1, 2});
    const auto expected = train(without_parts(training));
    set_recompute(training.plan, what);
    training.plan.ckpt_layers = 3;
    expect_same_training(expected, train(training));
  }
}

// Their gradients are added up where a product makes them, which some schedules put off.
TEST(PipelineParallel, OfTensorRanksThatShareKeyValueHeads) {
  for (const StagedLayout& layout :
       {StagedLayout{PipelineKind::kOneForwardOneBackward, 4, 2},
        StagedLayout{PipelineKind::kZb1p, 4, 2}, StagedLayout{PipelineKind::kZbv, 4, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    const Training training = pipeline(tiny_qwen2(), Strategy::kYafsdp, layout);
    Training alone = training;
    alone.plan.parallel = {};
    alone.plan.parallel.tp = alone.plan.gpus = layout.tp;
    expect_same_training(train(alone), train(training));
  }
}

/// The evaluation of one micro-batch after training.
double evaluated(Training training) {
  std::mutex mutex;
  double loss = 0;
  training.inspect = [&](int rank, Executor& executor) {
    Training one = training;
    one.plan.grad_accum = 1;
    const LossSums sums = executor.evaluate(batch_of(one, 9, rank));
    const std::lock_guard lock(mutex);
    if (rank == 0) loss = sums.loss;
  };
  train(training);
  return loss;
}

TEST(PipelineParallel, EvaluatesAsOneRankDoes) {
  for (const StagedLayout& layout : layouts()) {
    if (layout.tp > 1 || layout.dp > 1) continue;
    SCOPED_TRACE(words_of(layout));
    const Training training = pipeline(tiny_llama(), Strategy::kYafsdp, layout);
    Training alone = training;
    alone.plan.parallel = {};
    alone.plan.gpus = 1;
    alone.plan.strategy = Strategy::kSingle;
    EXPECT_EQ(evaluated(training), evaluated(alone));
  }
}

}  // namespace
}  // namespace shardwright::exec
