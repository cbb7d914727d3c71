// SPDX-License-Identifier: Apache-2.0
// A table that is embedding and head, on the first and the last stage of a pipeline: one rank that
// sums the gradients of both uses apart, to the bit, with copies that stay equal.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sim/core/placement.h"
#include "tests/exec/staged_training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

constexpr const char* kTable = "model.embed_tokens.weight";

Training tied_pipeline(const Model& model, Strategy strategy, const StagedLayout& layout) {
  return staged(model, strategy, layout, true);
}

std::vector<StagedLayout> tied_layouts() {
  using enum PipelineKind;
  return {{kOneForwardOneBackward, 1, 2},
          {kOneForwardOneBackward, 1, 2, 1, 1, 1},
          {kOneForwardOneBackward, 1, 4, 1, 1, 6},
          {kGpipe, 1, 2},
          {kInterleaved, 1, 2, 3},
          {kZb1p, 1, 4, 1, 1, 6},
          {kZbv, 1, 2, 2},
          {kZbv, 1, 2, 2, 2},
          {kOneForwardOneBackward, 2, 2, 1, 2},
          {kInterleaved, 2, 2, 2},
          {kZbv, 2, 2, 2}};
}

class TiedPipelines : public ::testing::TestWithParam<StagedLayout> {};

TEST_P(TiedPipelines, StagesAreOneRankThatSumsTheUsesApart) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled}) {
    Training training = tied_pipeline(tiny_llama(), Strategy::kYafsdp, GetParam());
    training.mode = mode;
    training.ignores_targets = true;
    training.loss_chunk_tokens = 10;
    SCOPED_TRACE(words_of(GetParam()));
    expect_as_without_parts(training);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TiedPipelines, ::testing::ValuesIn(tied_layouts()),
                         parameter_name);

TEST(TiedEmbedding, OfEveryStrategy) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1,
        Strategy::kFsdp2, Strategy::kFsdp2NoReshard, Strategy::kHsdp, Strategy::kYafsdp,
        Strategy::kYafsdpZero2}) {
    for (const bool is_v : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", name_of(strategy), is_v ? " zbv" : ""));
      StagedLayout layout{PipelineKind::kOneForwardOneBackward, 1, 2, 1, 2};
      if (is_v) layout = {PipelineKind::kZbv, 1, 2, 2, 2};
      Training training = tied_pipeline(tiny_qwen3(), strategy, layout);
      if (strategy == Strategy::kHsdp) training.plan.shard_group = 1;
      expect_as_without_parts(training);
    }
  }
}

// With learned positions beside the table, biases of the last norm, scaled embeddings, capped
// logits; a bf16 copy beside the master.
TEST(TiedEmbedding, OfEveryFamily) {
  for (const Model& model : {tiny_gpt2(), tiny_mpt(), tiny_gemma(), tiny_gemma2()}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      for (const StagedLayout& layout : {StagedLayout{PipelineKind::kInterleaved, 1, 2, 3, 2},
                                         StagedLayout{PipelineKind::kZbv, 1, 2, 2, 2}}) {
        SCOPED_TRACE(
            fmt::format("{} in {}, {}", model.family, name_of(dtype), name_of(layout.kind)));
        Training training = tied_pipeline(model, Strategy::kZero1, layout);
        training.plan.param_dtype = dtype;
        expect_as_without_parts(training);
      }
    }
  }
}

TEST(TiedEmbedding, SumsInFewerBits) {
  for (const StagedLayout& layout : {StagedLayout{PipelineKind::kInterleaved, 1, 2, 3, 2},
                                     StagedLayout{PipelineKind::kZbv, 1, 2, 2, 2}}) {
    Training training = tied_pipeline(tiny_llama(), Strategy::kDdp, layout);
    training.plan.param_dtype = training.plan.reduce_dtype = DType::kBf16;
    SCOPED_TRACE(words_of(layout));
    expect_as_without_parts(training);
  }
}

TEST(TiedEmbedding, RowsOfTensorRanksThatAreNotAsMany) {
  Model model = divisible(tiny_llama());
  for (const std::int64_t tp : {2, 4}) {
    for (const bool sp : {true, false}) {
      Training training = tied_pipeline(model, Strategy::kFsdp2,
                                        {PipelineKind::kOneForwardOneBackward, tp, 2, 1, 1});
      training.plan.parallel.sp = sp;
      SCOPED_TRACE(fmt::format("tp {} sp {}", tp, sp));
      expect_as_without_parts(training);
    }
  }
}

TEST(TiedEmbedding, RecomputesToTheSameBitsAndEvaluatesAsOneRankDoes) {
  for (const StagedLayout& layout : {StagedLayout{PipelineKind::kInterleaved, 1, 2, 3},
                                     StagedLayout{PipelineKind::kZbv, 1, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    std::mutex mutex;
    std::vector<double> losses;
    Training training = tied_pipeline(tiny_llama(), Strategy::kFsdp2, layout);
    const auto evaluate = [&](const Training& of) {
      Training evaluated = of;
      evaluated.inspect = [&](int rank, Executor& executor) {
        Training one = of;
        one.plan.grad_accum = 1;
        const LossSums sums = executor.evaluate(batch_of(one, 9, rank));
        const std::lock_guard lock(mutex);
        if (rank == 0) losses.push_back(sums.loss);
      };
      return train(evaluated);
    };
    const auto expected = evaluate(without_parts(training));
    set_recompute(training.plan, "full");
    training.plan.ckpt_layers = 3;
    expect_same_training(expected, evaluate(training));
    EXPECT_EQ(losses.at(0), losses.at(1));
  }
}

// Any strategy can have these sums without stages, too.
TEST(TiedEmbedding, WithoutStagesAPlanMaySumTheUsesApart) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kYafsdp}) {
    SCOPED_TRACE(name_of(strategy));
    Training training = tied_pipeline(tiny_llama(), strategy, {});
    training.plan.parallel = {};
    training.plan.sum_uses = 2;
    expect_as_without_parts(training);
  }
}

/// Weights by name and place, whatever else the model has: a head of its own gets the table.
void write_weights_by_name(Executor& executor) {
  for (const OwnedState& state : executor.owned_state()) {
    const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
    if (tensor.initial != Initial::kNormal) continue;
    const std::string name = tensor.name == "lm_head.weight" ? kTable : tensor.name;
    std::uint64_t seed = 1;
    for (const char letter : name) seed = 31 * seed + static_cast<unsigned char>(letter);
    std::vector<float> values(static_cast<std::size_t>(state.parameter.size));
    kernels::random_normal({seed, kernels::RandomSite::kInit, 0},
                           static_cast<std::uint64_t>(state.tensor_offset), 0.0, 0.05, values);
    executor.write(values, state.parameter);
  }
  executor.parameters_changed();
}

TrainedStep first_step(Training training) {
  training.prepare = write_weights_by_name;
  training.steps = 1;
  return train(training).front();
}

// The oracle: a head of its own with the same numbers makes its part of the gradient alone, and
// the norm is that of the gradients of all weights, each once.
TEST(TiedEmbedding, TheGradientIsThatOfTheEmbeddingAndThatOfTheHead) {
  Training apart = without_parts(tied_pipeline(tiny_llama(), Strategy::kSingle, {}));
  apart.model.tied_head = false;
  const Tensors parts = first_step(apart).gradients;
  std::vector<float> sum = parts.at(kTable);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += parts.at("lm_head.weight")[i];
  for (const StagedLayout& layout : tied_layouts()) {
    if (layout.tp > 1 || layout.dp > 1 || layout.accum != 4) continue;
    SCOPED_TRACE(words_of(layout));
    const TrainedStep step = first_step(tied_pipeline(tiny_llama(), Strategy::kYafsdp, layout));
    EXPECT_EQ(step.gradients.size() + 1, parts.size());
    double squares = 0;
    for (const auto& [name, values] : step.gradients) {
      const std::vector<float>& expected = name == kTable ? sum : parts.at(name);
      EXPECT_EQ(values, expected) << name;
      for (const float value : values) squares += static_cast<double>(value) * value;
    }
    const double norm = std::sqrt(squares) / static_cast<double>(step.result.tokens);
    EXPECT_NEAR(step.result.gradient_norm, norm, 1e-9 * norm);
  }
}

// Together and apart are two orders of the same addends, one of each use a micro-batch.
TEST(TiedEmbedding, SumsOfUsesTogetherDifferByRounding) {
  Training training = without_parts(tied_pipeline(tiny_llama(), Strategy::kSingle, {}));
  const std::int64_t micro_batches = training.plan.grad_accum;
  const std::vector<float> apart = first_step(training).gradients.at(kTable);
  training.plan.sum_uses = 1;
  const std::vector<float> together = first_step(training).gradients.at(kTable);
  EXPECT_NE(apart, together);
  std::vector<double> magnitude(apart.size());
  Training one = training;
  one.model.tied_head = false;
  one.plan.grad_accum = 1;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    one.batch = [&](int step, int) {
      Batch batch;
      append_micro_batch(training, step, m, batch);
      return batch;
    };
    const Tensors parts = first_step(one).gradients;
    for (const char* use : {kTable, "lm_head.weight"}) {
      for (std::size_t i = 0; i < magnitude.size(); ++i)
        magnitude[i] += std::abs(static_cast<double>(parts.at(use)[i]));
    }
  }
  const double n_u = static_cast<double>(2 * micro_batches - 1) * std::ldexp(1.0, -24);
  const double gamma = n_u / (1 - n_u);
  for (std::size_t i = 0; i < apart.size(); ++i) {
    const double difference = std::abs(static_cast<double>(apart[i]) - together[i]);
    ASSERT_LE(difference, 2 * gamma * magnitude[i]) << i;
  }
}

/// The table and its moments after training, as each stage that has them has them.
std::map<std::int64_t, Tensors> tables_by_stage(Training training) {
  std::mutex mutex;
  std::map<std::int64_t, Tensors> tables;
  const RankMesh mesh(training.plan, 1);
  training.inspect = [&](int rank, Executor& executor) {
    const std::lock_guard lock(mutex);
    for (const OwnedState& state : executor.owned_state()) {
      const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
      if (tensor.name != kTable) continue;
      const auto put = [&](const char* what, const Array& array) {
        std::vector<float>& whole = tables[mesh.place_of(rank).pp][what];
        whole.resize(static_cast<std::size_t>(tensor.size));
        const std::vector<float> part = executor.read(array);
        std::copy(part.begin(), part.end(), whole.begin() + state.tensor_offset);
      };
      put("weight", state.parameter);
      put("first moment", state.first_moment);
      put("second moment", state.second_moment);
    }
  };
  train(training);
  return tables;
}

TEST(TiedEmbedding, CopiesStayEqual) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kYafsdp}) {
    for (const StagedLayout& layout : {StagedLayout{PipelineKind::kInterleaved, 1, 2, 2, 2},
                                       StagedLayout{PipelineKind::kZb1p, 2, 4, 1, 1, 6}}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(strategy), words_of(layout)));
      Training training = tied_pipeline(tiny_llama(), strategy, layout);
      training.steps = 4;
      if (strategy == Strategy::kZero1) {  // what is rounded at random is rounded alike
        training.plan.param_dtype = training.plan.master_dtype = DType::kBf16;
        training.plan.moment_dtype = DType::kBf16;
      }
      const auto tables = tables_by_stage(training);
      ASSERT_EQ(tables.size(), 2u);
      EXPECT_EQ(tables.rbegin()->first, layout.pp - 1);
      expect_same_bits(tables.begin()->second, tables.rbegin()->second, "copy");
    }
  }
}

Op& addition_of(Schedule& schedule) {
  return *std::find_if(schedule.ops.begin(), schedule.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kAccumulate && op.weight == Weight::kHead;
  });
}

TEST(TiedEmbedding, SumsThatAreWrongAreSeen) {
  // The first stage does not add what it got: copies part.
  Training training = tied_pipeline(tiny_llama(), Strategy::kZero1, {});
  training.change = [](Schedule& first) { addition_of(first).kind = OpKind::kScale; };
  const auto tables = tables_by_stage(training);
  EXPECT_NE(tables.at(0).at("weight"), tables.at(1).at("weight"));
  // The head's gradient is added twice.
  training = tied_pipeline(tiny_llama(), Strategy::kZero1, {PipelineKind::kZbv, 1, 2, 2});
  const auto expected = train(without_parts(training));
  training.change = [](Schedule& first) {
    const auto addition = static_cast<std::uint32_t>(&addition_of(first) - first.ops.data());
    for (Block& block : first.blocks) {
      if (block.first_op != addition) continue;
      block.repeats = 2;
      block.unit_step = 0;
    }
  };
  const auto twice = train(training);
  EXPECT_NE(expected[0].gradients.at(kTable), twice[0].gradients.at(kTable));
  EXPECT_NE(expected[0].result.gradient_norm, twice[0].result.gradient_norm);
  EXPECT_EQ(expected[0].result.loss_sum, twice[0].result.loss_sum);
}

/// Parameters that all ranks of a replica own, copies among them.
std::int64_t owned_parameters(const Training& training) {
  std::mutex mutex;
  std::int64_t owned = 0;
  Training one = training;
  one.steps = 1;
  one.inspect = [&](int, Executor& executor) {
    const std::lock_guard lock(mutex);
    for (const OwnedState& state : executor.owned_state()) owned += state.parameter.size;
    EXPECT_EQ(executor.device().peak_allocated_bytes(), executor.planned_bytes());
    EXPECT_EQ(executor.planned_bytes(), static_memory_bytes(executor.schedule()));
  };
  train(one);
  return owned;
}

TEST(TiedEmbedding, OneStageThatHasBothEndsHasOneTable) {
  const Model model = tied(tiny_llama());
  const std::int64_t table = model.vocab * model.hidden;
  const Training alone = without_parts(tied_pipeline(model, Strategy::kYafsdp, {}));
  const std::int64_t all = owned_parameters(alone);
  EXPECT_EQ(owned_parameters(tied_pipeline(model, Strategy::kYafsdp, {})), all + table);
  EXPECT_EQ(
      owned_parameters(tied_pipeline(model, Strategy::kYafsdp, {PipelineKind::kZbv, 1, 2, 2})),
      all);
}

}  // namespace
}  // namespace shardwright::exec
