// SPDX-License-Identifier: Apache-2.0
// Tensor ranks are one rank that adds up as many leaves, to the bit.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/core/base/error.h"
#include "tests/exec/training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

Training tensor_parallel(const Model& model, Strategy strategy, std::int64_t tp, std::int64_t dp,
                         std::int64_t accum = 1) {
  Training training;
  training.model = model;
  training.plan = tiny_plan(strategy, tp * dp, accum);
  training.plan.parallel.tp = tp;
  training.steps = 2;
  training.options.poison = true;
  return training;
}

/// One rank that accumulates all micro-batches of a step, with the same leaves.
std::vector<TrainedStep> alone(Training training) {
  const RankMesh mesh(training.plan, 1);
  training.plan.sum_features = training.plan.feature_parts();
  training.plan.grad_accum *= mesh.dp;
  training.plan.gpus = 1;
  training.plan.shard_group = 0;
  training.plan.parallel = {};
  training.plan.strategy = Strategy::kSingle;
  training.mode = StreamMode::kInline;
  training.options = {};
  return train(training);
}

class TensorFamilies : public ::testing::TestWithParam<Model> {};

TEST_P(TensorFamilies, RanksAreOneRankWithTheirLeaves) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const std::int64_t tp : {2, 4}) {
      for (const bool sp : {true, false}) {
        SCOPED_TRACE(fmt::format("tp {}, sp {}, {}", tp, sp, name_of(dtype)));
        Training training = tensor_parallel(divisible(GetParam()), Strategy::kYafsdp, tp, 1, 2);
        training.plan.parallel.sp = sp;
        training.plan.param_dtype = dtype;
        training.packs_documents = true;
        const auto expected = alone(training);
        ASSERT_GT(expected.back().result.gradient_norm, 0);
        expect_same_training(expected, train(training));
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorFamilies,
                         ::testing::Values(tiny_llama(), tiny_qwen2(), tiny_qwen3(), tiny_gpt2(),
                                           tiny_mpt(), tiny_gpt_neox(), tiny_gemma(),
                                           tiny_gemma2()),
                         parameter_name);

class TensorStrategies : public ::testing::TestWithParam<Strategy> {};

TEST_P(TensorStrategies, RanksAreOneRankWithTheirLeaves) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
    const bool whole_sums = GetParam() == Strategy::kDdp || GetParam() == Strategy::kZero1;
    Training training = tensor_parallel(tiny_qwen3(), GetParam(), 2, 2, whole_sums ? 1 : 2);
    if (GetParam() == Strategy::kHsdp) training.plan.shard_group = 1;
    training.mode = mode;
    training.ignores_targets = true;
    training.loss_chunk_tokens = 10;
    const auto expected = alone(training);
    ASSERT_GT(expected.back().result.gradient_norm, 0);
    expect_same_training(expected, train(training));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, TensorStrategies,
                         ::testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2,
                                           Strategy::kZero3, Strategy::kFsdp1, Strategy::kFsdp2,
                                           Strategy::kFsdp2NoReshard, Strategy::kHsdp,
                                           Strategy::kYafsdp, Strategy::kYafsdpZero2),
                         parameter_name);

TEST(TensorParallel, RecomputesToTheSameBits) {
  for (const char* what : {"full", "selective-op", "norm", "ffn", "attention", "block"}) {
    SCOPED_TRACE(what);
    Training training = tensor_parallel(tiny_llama(), Strategy::kFsdp2, 2, 1, 2);
    const auto expected = alone(training);
    set_recompute(training.plan, what);
    training.plan.ckpt_layers = 2;
    expect_same_training(expected, train(training));
  }
}

TEST(TensorParallel, LeavesOfMoreRanksThanThereAre) {
  Training training = tensor_parallel(divisible(tiny_llama()), Strategy::kYafsdp, 2, 2);
  training.model.vocab = 96;
  training.plan.sum_features = 4;
  expect_same_training(alone(training), train(training));
}

/// Two ranks have each key/value head: of its gradients each makes what its query heads need, and
/// what they add up lies on no border of leaves of one rank, whose attention sums over the query
/// heads of a key head within its tiles. So these bits are those of four tensor ranks, however many
/// replicas and whatever the strategy, not those of one rank.
TEST(TensorParallel, RanksThatShareKeyValueHeadsAreAlikeInAllLayouts) {
  Model biased = tiny_qwen2();
  Model packed = divisible(tiny_llama());
  packed.fused_qkv = true;
  packed.family = "phi3";
  packed.fused_gate_up = true;
  for (Model model : {tiny_qwen3(), biased, packed}) {
    SCOPED_TRACE(model.name + " " + model.family);
    model.heads = 8;
    model.kv_heads = 2;
    model.head_dim = 16;
    const Training training = tensor_parallel(model, Strategy::kYafsdp, 4, 1, 4);
    const auto expected = train(training);
    for (const Strategy strategy :
         {Strategy::kFsdp2, Strategy::kZero2, Strategy::kFsdp2NoReshard}) {
      expect_same_training(expected, train(tensor_parallel(model, strategy, 4, 2, 2)));
    }
    for (const StreamMode mode : {StreamMode::kThreads, StreamMode::kShuffled}) {
      for (const bool sp : {true, false}) {
        Training beside = tensor_parallel(model, Strategy::kYafsdp, 4, 2, 2);
        beside.plan.parallel.sp = sp;
        beside.mode = mode;
        expect_same_training(expected, train(beside));
      }
    }
    Training one = training;
    one.plan.parallel = {};
    one.plan.gpus = 1;
    one.plan.strategy = Strategy::kSingle;
    const auto near = train(one);
    EXPECT_NEAR(near[0].result.loss(), expected[0].result.loss(), 1e-6);
    EXPECT_NEAR(near[0].result.gradient_norm / expected[0].result.gradient_norm, 1, 1e-5);
    for (const auto& [name, values] : near[0].gradients) {
      const std::vector<float>& other = expected[0].gradients.at(name);
      float most = 0, apart = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        most = std::max(most, std::abs(values[i]));
        apart = std::max(apart, std::abs(values[i] - other[i]));
      }
      EXPECT_LE(apart, 1e-5f * most) << name;
    }
    if (HasFailure()) return;
  }
}

TEST(TensorParallel, AnotherOrderOfSumsHasOtherBits) {
  Training training = tensor_parallel(tiny_llama(), Strategy::kYafsdp, 2, 1);
  Training whole = training;
  whole.plan.sum_features = 1;
  whole.plan.parallel = {};
  whole.plan.gpus = 1;
  whole.plan.strategy = Strategy::kSingle;
  const auto a = train(training), b = train(whole);
  EXPECT_NE(a.back().gradients, b.back().gradients);
  EXPECT_NEAR(a.back().result.loss(), b.back().result.loss(), 1e-5);
}

}  // namespace
}  // namespace shardwright::exec
