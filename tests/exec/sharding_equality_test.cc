// SPDX-License-Identifier: Apache-2.0
// The acceptance test: W ranks that shard are one rank that accumulates, to the bit.
#include <gtest/gtest.h>

#include "tests/exec/training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// One rank that accumulates all micro-batches of a step.
std::vector<TrainedStep> reference(Training training, std::int64_t micro_batches) {
  training.plan.strategy = Strategy::kSingle;
  training.plan.gpus = 1;
  training.plan.shard_group = 0;
  training.plan.grad_accum = micro_batches;
  return train(training);
}

struct Case {
  Strategy strategy;
  std::int64_t ranks;
  std::int64_t grad_accum = 1;
  std::int64_t shard_group = 0;
  bool tied_bf16 = false;  // a tied model with norms on heads, in bf16 instead of fp32
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c.strategy) << " " << c.ranks << "x" << c.grad_accum;
  if (c.shard_group > 0) *out << " by " << c.shard_group;
  if (c.tied_bf16) *out << " tied bf16";
}

class ShardingEquality : public ::testing::TestWithParam<Case> {
 protected:
  static Training sharded() {
    const Case& c = GetParam();
    Training training;
    training.model = uneven_llama();
    training.plan = tiny_plan(c.strategy, c.ranks, c.grad_accum);
    training.plan.shard_group = c.shard_group;
    if (c.tied_bf16) {
      training.model = tied(tiny_qwen3());
      training.plan.param_dtype = DType::kBf16;
    }
    return training;
  }
  static std::int64_t micro_batches() { return GetParam().ranks * GetParam().grad_accum; }
};

TEST_P(ShardingEquality, RanksAreOneRankThatAccumulates) {
  const Training training = sharded();
  const auto expected = reference(training, micro_batches());
  ASSERT_GT(expected.back().result.gradient_norm, 0);
  expect_same_training(expected, train(training));
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1,
        Strategy::kFsdp1GradOp, Strategy::kFsdp2, Strategy::kFsdp2NoReshard, Strategy::kHsdp,
        Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
    for (std::int64_t ranks = 1; ranks <= 4; ++ranks) {
      // Half of the ranks replicate, where that is possible.
      const std::int64_t group = strategy != Strategy::kHsdp ? 0 : ranks == 4 ? 2 : ranks;
      cases.push_back({strategy, ranks, 1, group});
    }
    // Strategies that reduce in every micro-batch also keep the order of micro-batches.
    const bool whole_sums = strategy == Strategy::kDdp || strategy == Strategy::kZero1;
    const std::int64_t accum = whole_sums ? 1 : 2;
    cases.push_back({strategy, 4, accum, strategy == Strategy::kHsdp ? 2 : 0, true});
    if (whole_sums) {
      cases.push_back({strategy, 1, 3});
      cases.push_back({strategy, 1, 3, 0, true});
      continue;
    }
    cases.push_back({strategy, 1, 3, strategy == Strategy::kHsdp ? 1 : 0});
    cases.push_back({strategy, 2, 4, strategy == Strategy::kHsdp ? 2 : 0});
    cases.push_back({strategy, 3, 2, strategy == Strategy::kHsdp ? 1 : 0});
  }
  cases.push_back({Strategy::kHsdp, 4, 3, 2});
  return cases;
}

/// Everything at once, drawn at random: what no list of cases thinks of.
Training random_training(std::uint64_t seed) {
  const kernels::RandomStream random{seed, kernels::RandomSite::kSynthetic, 0};
  std::uint64_t draws = 0;
  const auto below = [&](std::uint64_t n) { return random.below(draws++, n); };
  const auto pick = [&](const auto& choices) { return choices[below(std::size(choices))]; };
  Training training;
  training.model =
      pick(std::vector{tiny_llama(), tiny_qwen2(), tiny_qwen3(), uneven_llama(), tiny_gpt2(),
                       tiny_mpt(), tiny_gpt_neox(), tiny_gemma(), tiny_gemma2()});
  if (below(2) == 0) training.model = tied(training.model);
  training.model.layers = 1 + static_cast<std::int64_t>(below(5));
  const bool plain = below(5) == 0;
  if (training.model.norm == Normalization::kRmsNorm) training.model.gated_mlp = !plain;
  training.model.mlp_bias = below(4) == 0;
  training.model.attention_out_bias = below(4) == 0;
  const Strategy strategy =
      pick(std::vector{Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp2,
                       Strategy::kFsdp2NoReshard, Strategy::kHsdp, Strategy::kYafsdp,
                       Strategy::kYafsdp, Strategy::kYafsdpZero2});
  const bool whole_sums = strategy == Strategy::kDdp || strategy == Strategy::kZero1;
  const std::int64_t ranks =
      strategy == Strategy::kHsdp ? 4 : 1 + static_cast<std::int64_t>(below(4));
  Plan& plan = training.plan;
  plan = tiny_plan(strategy, ranks, whole_sums ? 1 : 1 + static_cast<std::int64_t>(below(3)));
  if (strategy == Strategy::kHsdp) plan.shard_group = 2;
  plan.seq_len = 22 + static_cast<std::int64_t>(below(20));
  plan.micro_batch = 1 + static_cast<std::int64_t>(below(3));
  plan.buffers = 1 + static_cast<int>(below(4));
  plan.prefetch = static_cast<int>(below(4));
  if (below(2) == 0) plan.param_dtype = DType::kBf16;
  if (below(2) == 0) plan.moment_dtype = DType::kBf16;
  set_recompute(plan, pick(std::vector{"none", "full", "selective-op", "norm", "swiglu", "ffn",
                                       "attention", "norm,swiglu", "block"}));
  if (plan.recompute != Recompute::kNone) {
    plan.ckpt_layers =
        1 + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(training.model.layers)));
  }
  training.mode = pick(std::vector{StreamMode::kInline, StreamMode::kThreads});
  training.options.poison = true;
  training.ignores_targets = below(2) == 0;
  training.packs_documents = below(2) == 0;
  training.loss_chunk_tokens = static_cast<double>(5 + below(60));
  training.steps = 2;
  return training;
}

/// Every family on ranks that shard, with what its own operations make different.
class Families : public ::testing::TestWithParam<Model> {};

TEST_P(Families, RanksAreOneRankThatAccumulates) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const auto& [strategy, ranks] :
         {std::pair{Strategy::kYafsdp, 3}, std::pair{Strategy::kZero1, 4},
          std::pair{Strategy::kFsdp2, 2}}) {
      SCOPED_TRACE(std::string(name_of(strategy)) + " in " + std::string(name_of(dtype)));
      Training training;
      training.model = GetParam();
      training.plan = tiny_plan(strategy, ranks, strategy == Strategy::kZero1 ? 1 : 2);
      training.plan.param_dtype = dtype;
      training.packs_documents = true;
      training.steps = 2;
      const auto expected = reference(training, training.plan.gpus * training.plan.grad_accum);
      ASSERT_GT(expected.back().result.gradient_norm, 0);
      expect_same_training(expected, train(training));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Families,
                         ::testing::Values(tiny_gpt2(), tiny_mpt(), tiny_gpt_neox(), tiny_gemma(),
                                           tiny_gemma2()),
                         parameter_name);

TEST(RandomPlans, AreOneRankThatAccumulates) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Training training = random_training(seed);
    const Plan& plan = training.plan;
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ": " << training.model.name << ", " << training.model.layers
                 << " layers, " << name_of(plan.strategy) << " on " << plan.gpus << " ranks, "
                 << plan.grad_accum << " micro-steps, " << recompute_name(plan) << " of "
                 << plan.ckpt_layers << ", " << plan.buffers << " buffers, prefetch "
                 << plan.prefetch << ", " << name_of(plan.param_dtype));
    Training alone = training;
    alone.plan.recompute = Recompute::kNone;
    alone.plan.ckpt_layers = 0;
    alone.options.poison = false;
    alone.mode = StreamMode::kInline;
    const auto expected = reference(alone, plan.gpus * plan.grad_accum);
    ASSERT_TRUE(expected.back().result.gradient_norm > 0);
    expect_same_training(expected, train(training));
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ShardingEquality, ::testing::ValuesIn(cases()),
                         parameter_name);

}  // namespace
}  // namespace shardwright::exec
