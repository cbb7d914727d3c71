// SPDX-License-Identifier: Apache-2.0
// Training with layers that multiply in fp8: what its products are, and what of the sharding's
// equalities holds.
#include <gtest/gtest.h>

#include <cmath>

#include "exec/model_ops.h"
#include "tests/exec/training.h"
#include "tests/kernels/support.h"
#include "tests/oracle/fp8.h"
#include "tests/oracle/linear.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using kernels::BFloat16;
using kernels::Fp8Format;
using kernels::Fp8Scaling;
using kernels::testing::Data;
using kernels::testing::expect_close;
using kernels::testing::random_data;
namespace oracle = kernels::reference;

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kMxfp8};

Fp8Scaling scaling_of(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kTensorwise ? Fp8Scaling::kTensor
         : recipe == Fp8Recipe::kRowwise  ? Fp8Scaling::kRows
                                          : Fp8Scaling::kBlocks;
}

std::vector<double> transposed(const std::vector<double>& m, std::int64_t cols) {
  const std::int64_t rows = static_cast<std::int64_t>(m.size()) / cols;
  std::vector<double> result;
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t r = 0; r < rows; ++r)
      result.push_back(m[static_cast<std::size_t>(r * cols + c)]);
  }
  return result;
}

class ProductsInFp8 : public ::testing::TestWithParam<Fp8Recipe> {
 protected:
  static constexpr std::int64_t kTokens = 96, kOut = 64, kIn = 32;

  /// What is left of numbers in fp8, with scales along rows of `cols`.
  static std::vector<double> rounded(const std::vector<double>& numbers, std::int64_t cols,
                                     bool is_gradient = false) {
    const bool wide = is_gradient && GetParam() == Fp8Recipe::kTensorwise;
    return oracle::quantize(wide ? Fp8Format::kE5M2 : Fp8Format::kE4M3, scaling_of(GetParam()),
                            numbers, cols)
        .values;
  }
  static Matrix view(std::vector<BFloat16>& values, std::int64_t cols) {
    return {values.data(), DType::kBf16, static_cast<std::int64_t>(values.size()) / cols, cols};
  }
};

TEST_P(ProductsInFp8, AreOfOperandsScaledAlongTheirSums) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kInline);
  Model model = tiny_llama();
  model.hidden = kOut;
  model.ffn = 96;
  const Fp8Workspace plan = plan_fp8_workspace(model, kTokens);
  std::vector<std::byte> room(static_cast<std::size_t>(plan.size_bytes()));
  Fp8Products products(plan, room.data(), GetParam(), device, device.make_stream("compute", 0));

  Data<BFloat16> x = random_data<BFloat16>(1, kTokens * kIn),
                 w = random_data<BFloat16>(2, kOut * kIn),
                 d_y = random_data<BFloat16>(3, kTokens * kOut, 1e-6);
  Data<BFloat16> residual = random_data<BFloat16>(4, kTokens * kOut);
  std::vector<BFloat16> y(static_cast<std::size_t>(kTokens * kOut)),
      d_x(static_cast<std::size_t>(kTokens * kIn));
  std::vector<float> d_w(static_cast<std::size_t>(kOut * kIn), 1e-5f);
  constexpr double kSums = 64 * 0x1p-24, kBf16 = 0x1p-8;

  products.forward(view(x.typed, kIn), view(w.typed, kIn), {view(residual.typed, kOut), {}},
                   view(y, kOut));
  auto expected =
      oracle::linear_forward(rounded(x.exact, kIn), rounded(w.exact, kIn), kTokens, kIn, kOut);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual.exact[i];
  expect_close(y, expected, kBf16 + kSums, "forward");

  const auto w_columns = transposed(rounded(transposed(w.exact, kIn), kOut), kOut);
  products.input_gradient(view(d_y.typed, kOut), view(w.typed, kIn), view(d_x, kIn));
  expect_close(
      d_x,
      oracle::linear_input_gradient(rounded(d_y.exact, kOut, true), w_columns, kTokens, kIn, kOut),
      kBf16 + kSums, "input gradient");

  const auto d_y_columns = transposed(rounded(transposed(d_y.exact, kOut), kTokens, true), kTokens);
  const auto x_columns = transposed(rounded(transposed(x.exact, kIn), kTokens), kTokens);
  auto sum = oracle::linear_weight_gradient(d_y_columns, x_columns, kTokens, kIn, kOut);
  const Matrix gradient(d_w.data(), DType::kFp32, kOut, kIn);
  products.weight_gradient(view(d_y.typed, kOut), view(x.typed, kIn), gradient, true);
  for (double& value : sum) value += static_cast<double>(1e-5f);
  expect_close(d_w, sum, kSums, "weight gradient");

  // Other numbers in the same place.
  for (BFloat16& value : d_y.typed) value = kernels::to_bf16(2 * kernels::to_float(value));
  products.forget();
  products.weight_gradient(view(d_y.typed, kOut), view(x.typed, kIn), gradient, false);
  for (double& value : sum) value = 2 * (value - static_cast<double>(1e-5f));
  expect_close(d_w, sum, kSums, "weight gradient of others");
}

Training training_of(Fp8Recipe recipe) {
  Training training;
  training.model.ffn = 96;
  training.plan = tiny_plan(Strategy::kSingle, 1, 1);
  training.plan.param_dtype = DType::kBf16;
  training.plan.numerics.precision = Precision::kFp8;
  training.plan.numerics.fp8_recipe = recipe;
  return training;
}

double distance(const Tensors& a, const Tensors& b) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(values[i]) - static_cast<double>(b.at(name)[i]);
      difference += d * d;
      size += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  return std::sqrt(difference / size);
}

class TrainingInFp8 : public ::testing::TestWithParam<Fp8Recipe> {};

TEST_P(TrainingInFp8, RanksAreOneRankThatAccumulates) {
  struct Case {
    Strategy strategy;
    std::int64_t ranks, grad_accum;
  };
  for (const auto& [strategy, ranks, grad_accum] :
       {Case{Strategy::kYafsdp, 3, 2}, Case{Strategy::kZero1, 4, 1}, Case{Strategy::kFsdp2, 2, 2},
        Case{Strategy::kDdp, 2, 1}}) {
    SCOPED_TRACE(std::string(name_of(strategy)));
    Training alone = training_of(GetParam());
    alone.plan.grad_accum = ranks * grad_accum;
    Training training = alone;
    training.plan.strategy = strategy;
    training.plan.gpus = ranks;
    training.plan.grad_accum = grad_accum;
    training.plan.ckpt_layers = 2;
    training.plan.recompute = Recompute::kFull;
    training.mode = StreamMode::kThreads;
    training.options.poison = true;
    expect_same_training(train(alone), train(training));
  }
}

// What puts a model of 8 billion parameters on one card of 80 GB.
TEST_P(TrainingInFp8, StatesMayBeBf16) {
  Training wide = training_of(GetParam());
  wide.steps = 4;  // in more of them the tiny model goes ways of its own
  Training narrow = wide;
  narrow.plan.master_dtype = narrow.plan.reduce_dtype = narrow.plan.moment_dtype = DType::kBf16;
  const auto in_fp32 = train(wide), in_bf16 = train(narrow);
  expect_same_training(in_bf16, train(narrow));  // rounding is by chance, but by the seed's
  const double learned = distance(in_bf16.front().weights, in_bf16.back().weights);
  const double apart = distance(in_fp32.back().weights, in_bf16.back().weights);
  EXPECT_LT(apart, 0.5 * learned);
  EXPECT_NEAR(in_bf16.back().result.loss() / in_fp32.back().result.loss(), 1, 0.02);
  for (const auto& [name, values] : in_bf16.back().weights) {
    for (const float value : values) {
      ASSERT_EQ(kernels::to_float(kernels::to_bf16(value)), value) << name;
    }
  }
  narrow.plan.strategy = Strategy::kYafsdp;
  narrow.plan.gpus = 2;
  wide.plan.grad_accum = 2;
  EXPECT_NEAR(train(narrow).back().result.loss() / train(wide).back().result.loss(), 1, 0.02);
}

TEST_P(TrainingInFp8, TakesTheMemoryOfItsPlan) {
  Training training = training_of(GetParam());
  training.steps = 1;
  kernels::host::Parallel parallel(1);
  training.make_device = [&](int) {
    return std::make_unique<HostDevice>(parallel, StreamMode::kInline);
  };
  Bytes planned = 0;
  training.inspect = [&](int, Executor& executor) { planned = executor.planned_bytes(); };
  train(training);
  Training wide = training;
  wide.plan.numerics = {};
  Bytes without = 0;
  wide.inspect = [&](int, Executor& executor) { without = executor.planned_bytes(); };
  train(wide);
  EXPECT_EQ(planned - without,
            plan_fp8_workspace(training.model, training.plan.seq_len).size_bytes());
}

// Three or two bits behind the first one: products differ by percents, not by more.
TEST_P(TrainingInFp8, GradientsAreThoseOfBf16ButForRounding) {
  Training training = training_of(GetParam());
  training.steps = 1;
  Training wide = training;
  wide.plan.numerics = {};
  const TrainedStep fp8 = train(training)[0], bf16 = train(wide)[0];
  EXPECT_NEAR(fp8.result.loss_sum, bf16.result.loss_sum, 5e-3 * bf16.result.loss_sum);
  EXPECT_GT(distance(bf16.gradients, fp8.gradients), 0.01);
  EXPECT_LT(distance(bf16.gradients, fp8.gradients), 0.15);
}

// A tensorwise scale is of a micro-batch: joined ones round otherwise. Scales of rows and blocks
// are of each token in forward; in the weight gradient, which adds over tokens, they are joined,
// but powers of two round alike, except where numbers vanish beside the largest one.
TEST_P(TrainingInFp8, JoinedMicroBatchesHaveOneTensorwiseScale) {
  Training apart = training_of(GetParam());
  apart.steps = 1;
  apart.plan.grad_accum = 2;
  Training joined = apart;
  joined.plan.grad_accum = 1;
  joined.plan.micro_batch = 2;
  const TrainedStep one = train(apart)[0], other = train(joined)[0];
  const double change = std::abs(one.result.loss_sum - other.result.loss_sum);
  if (GetParam() == Fp8Recipe::kTensorwise) {
    EXPECT_GT(change, 1e-6 * one.result.loss_sum);
    EXPECT_GT(distance(one.gradients, other.gradients), 1e-2);
  } else {
    EXPECT_LT(change, 1e-12 * one.result.loss_sum);
    EXPECT_LT(distance(one.gradients, other.gradients), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ProductsInFp8, ::testing::ValuesIn(kRecipes), parameter_name);
INSTANTIATE_TEST_SUITE_P(Recipes, TrainingInFp8, ::testing::ValuesIn(kRecipes), parameter_name);

}  // namespace
}  // namespace shardwright::exec
