// SPDX-License-Identifier: Apache-2.0
// Layers in fp8 on GPUs of every kind that the fake library knows: the host's numbers, the same
// bits on any ranks, and products only in the layouts and with the scales that the GPU has.
#include <gmock/gmock.h>

#include "exec/model_ops.h"
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"
#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

struct Fp8Gpu {
  const char* name;
  int major, minor;
  Fp8Recipe recipe;
};

void use_fp8_gpu(const Fp8Gpu& one, std::uint64_t seed = 1) {
  cuda_on_cpu::FakeMachine machine;
  machine.seed = seed;
  machine.compute_major = one.major;
  machine.compute_minor = one.minor;
  cuda_on_cpu::reset(machine);
}

Training fp8_training(Fp8Recipe recipe) {
  Training training;
  training.model = tiny_qwen2();  // with biases
  training.model.hidden = 32;
  training.model.heads = 2;
  training.model.kv_heads = 1;
  training.model.ffn = 64;
  training.model.layers = 1;
  training.plan = tiny_plan(Strategy::kSingle, 1, 2);
  training.plan.param_dtype = DType::kBf16;
  training.plan.numerics.precision = Precision::kFp8;
  training.plan.numerics.fp8_recipe = recipe;
  training.steps = 1;
  return training;
}

Training on_fp8_gpu(Training training) {
  training.make_device = [](int) { return naive_device(); };
  training.options.poison = true;
  return training;
}

double fp8_distance(const Tensors& a, const Tensors& b) {
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

class CudaFp8Training : public ::testing::TestWithParam<Fp8Gpu> {};

/// What a device makes of the same operands: y, dx and dw.
std::vector<std::vector<float>> products_on(Device& device, Fp8Recipe recipe,
                                            std::int64_t in_features = 96) {
  constexpr std::int64_t kTokens = 160, kOut = 64;
  const StreamId stream = device.make_stream("compute", 0);
  std::vector<std::unique_ptr<Allocation>> memory;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols, DType dtype, double deviation) {
    std::vector<float> drawn(static_cast<std::size_t>(rows * cols));
    kernels::random_normal(
        {3, kernels::RandomSite::kSynthetic, static_cast<std::uint32_t>(memory.size())}, 0, 0,
        deviation, drawn);
    std::vector<kernels::BFloat16> narrow;
    for (const float value : drawn) narrow.push_back(kernels::to_bf16(value));
    const Bytes bytes = rows * cols * bytes_of(dtype);
    memory.push_back(device.allocate(bytes));
    const void* from =
        dtype == DType::kFp32 ? static_cast<const void*>(drawn.data()) : narrow.data();
    device.copy(stream, memory.back()->data(), from, bytes);
    device.synchronize();
    return Matrix(memory.back()->data(), dtype, rows, cols);
  };
  const auto numbers = [&](const Matrix& m) {
    const auto count = static_cast<std::size_t>(m.rows * m.cols);
    std::vector<float> wide(count);
    std::vector<kernels::BFloat16> narrow(count);
    const bool is_wide = m.dtype == DType::kFp32;
    device.copy(stream, is_wide ? static_cast<void*>(wide.data()) : narrow.data(), m.data,
                m.rows * m.cols * bytes_of(m.dtype));
    device.synchronize();
    for (std::size_t i = 0; i < count && !is_wide; ++i) wide[i] = kernels::to_float(narrow[i]);
    return wide;
  };
  const Matrix x = matrix(kTokens, in_features, DType::kBf16, 1),
               w = matrix(kOut, in_features, DType::kBf16, 0.1),
               d_y = matrix(kTokens, kOut, DType::kBf16, 1e-6),
               residual = matrix(kTokens, kOut, DType::kBf16, 1),
               bias = matrix(1, kOut, DType::kBf16, 1), y = matrix(kTokens, kOut, DType::kBf16, 9),
               d_x = matrix(kTokens, in_features, DType::kBf16, 9),
               d_w = matrix(kOut, in_features, DType::kFp32, 1e-5);
  Model model = tiny_llama();
  model.hidden = in_features;
  model.ffn = in_features;
  const Fp8Workspace plan = plan_fp8_workspace(model, kTokens);
  const auto room = device.allocate(plan.size_bytes());
  Fp8Products products(plan, static_cast<std::byte*>(room->data()), recipe, device, stream);
  products.forward(x, w, {residual, {bias.data, DType::kBf16, kOut}}, y);
  products.input_gradient(d_y, w, d_x);
  products.weight_gradient(d_y, x, d_w, true);
  return {numbers(y), numbers(d_x), numbers(d_w)};
}

// The same codes and scales: what is left are sums in another order, and where the host rounds
// before it adds a bias.
TEST_P(CudaFp8Training, MultipliesAsTheHost) {
  use_fp8_gpu(GetParam());
  kernels::host::Parallel parallel(1);
  HostDevice host(parallel, StreamMode::kInline);
  CudaDevice cuda;
  const auto expected = products_on(host, GetParam().recipe);
  const auto found = products_on(cuda, GetParam().recipe);
  const double tolerance[] = {0x1p-7, 0x1p-8, 64 * 0x1p-24};
  for (std::size_t product = 0; product < 3; ++product) {
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < expected[product].size(); ++i) {
      const double value = expected[product][i];
      largest = std::max(largest, std::abs(value));
      worst = std::max(worst, std::abs(value - static_cast<double>(found[product][i])));
    }
    EXPECT_LE(worst, tolerance[product] * largest) << "product " << product;
  }
}

TEST_P(CudaFp8Training, GivesTheNumbersOfTheHost) {
  use_fp8_gpu(GetParam());
  const Training training = fp8_training(GetParam().recipe);
  Training wide = training;
  wide.plan.numerics = {};
  const TrainedStep host = train(training)[0], cuda = train(on_fp8_gpu(training))[0],
                    bf16 = train(wide)[0];
  EXPECT_NEAR(cuda.result.loss_sum, host.result.loss_sum, 2e-3 * host.result.loss_sum);
  // Sums in another order now and then round a number between layers to its neighbour in bf16,
  // which rounds to another code: a part of what fp8 costs.
  EXPECT_LT(fp8_distance(host.gradients, cuda.gradients),
            0.75 * fp8_distance(host.gradients, bf16.gradients));
}

TEST_P(CudaFp8Training, RanksAreOneRankThatAccumulates) {
  use_fp8_gpu(GetParam());
  Training alone = fp8_training(GetParam().recipe);
  alone.plan.grad_accum = 4;
  const auto one = train(on_fp8_gpu(alone));
  use_fp8_gpu(GetParam(), 3);
  Training training = alone;
  training.plan.strategy = Strategy::kYafsdp;
  training.plan.gpus = 2;
  training.plan.grad_accum = 2;
  expect_same_training(one, train(on_fp8_gpu(training)));
}

INSTANTIATE_TEST_SUITE_P(
    Gpus, CudaFp8Training,
    ::testing::Values(Fp8Gpu{"ada_tensorwise", 8, 9, Fp8Recipe::kTensorwise},
                      Fp8Gpu{"hopper_tensorwise", 9, 0, Fp8Recipe::kTensorwise},
                      Fp8Gpu{"hopper_rowwise", 9, 0, Fp8Recipe::kRowwise},
                      Fp8Gpu{"blackwell_tensorwise", 10, 0, Fp8Recipe::kTensorwise},
                      Fp8Gpu{"blackwell_mxfp8", 10, 0, Fp8Recipe::kMxfp8},
                      Fp8Gpu{"geforce_tensorwise", 12, 0, Fp8Recipe::kTensorwise},
                      Fp8Gpu{"geforce_mxfp8", 12, 0, Fp8Recipe::kMxfp8}),
    parameter_name);

// The GPU multiplies codes both ways, and those of rows serve all three products: the same bits as
// with transposes.
TEST(CudaFp8, BlackwellIsGivenNoTransposes) {
  use_fp8_gpu({"", 10, 0, Fp8Recipe::kTensorwise});
  EXPECT_TRUE(CudaDevice().multiplies_turned(kernels::Fp8Scaling::kTensor));
  EXPECT_FALSE(CudaDevice().multiplies_turned(kernels::Fp8Scaling::kBlocks));
  for (const int major : {9, 12}) {
    use_fp8_gpu({"", major, 0, Fp8Recipe::kTensorwise});
    EXPECT_FALSE(CudaDevice().multiplies_turned(kernels::Fp8Scaling::kTensor));
  }
  use_fp8_gpu({"", 9, 0, Fp8Recipe::kTensorwise});
  const auto hopper = train(on_fp8_gpu(fp8_training(Fp8Recipe::kTensorwise)));
  use_fp8_gpu({"", 10, 0, Fp8Recipe::kTensorwise});
  expect_same_training(hopper, train(on_fp8_gpu(fp8_training(Fp8Recipe::kTensorwise))));
}

TEST(CudaFp8, WhatAGpuDoesNotMultiplyEndsInASentence) {
  use_fp8_gpu({"", 9, 0, Fp8Recipe::kMxfp8});
  try {
    train(on_fp8_gpu(fp8_training(Fp8Recipe::kMxfp8)));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cuBLASLt has no algorithm for a product of 32 "
                                                   "x 64 x 32 in fp8 e4m3 e4m3 blocks"));
  }
}

TEST(CudaFp8, NamesAnotherRecipeWhereScalesOfRowsHaveNoAlgorithm) {
  constexpr std::int64_t kDeep = 9216;
  use_fp8_gpu({"", 9, 0, Fp8Recipe::kRowwise});
  EXPECT_THAT([] { products_on(*naive_device(), Fp8Recipe::kRowwise, kDeep); },
              ::testing::ThrowsMessage<Error>(::testing::AllOf(
                  ::testing::HasSubstr("160 x 64 x 9216 in fp8 e4m3 e4m3 rows"),
                  ::testing::EndsWith("with fp8_recipe tensorwise or more tokens it has one"))));
  EXPECT_NO_THROW(products_on(*naive_device(), Fp8Recipe::kTensorwise, kDeep));
}

}  // namespace
}  // namespace shardwright::exec
