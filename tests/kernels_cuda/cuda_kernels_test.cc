// SPDX-License-Identifier: Apache-2.0
// CUDA, emulated or a GPU, as an implementation of tests/kernels/contract.h, and what CUDA's
// kernels alone have: how many of them are launched, what they refuse, what no device calls.
#include "exec/cuda/cuda_device.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/norm.h"
#include "sim/core/base/error.h"
#include "sim/core/workspace.h"
#include "tests/kernels/contract.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels {

std::vector<contract::Executor> contract::executors() {
  Executor one;
  one.name = testing::kEmulated ? "emulated" : "gpu";
  one.variants = 3;
  one.make = [](int) {
    exec::CudaDeviceOptions options;
    options.attention = "naive";  // serves every type and size
    return std::make_shared<exec::CudaDevice>(options);
  };
  one.missing = testing::why_no_gpu();
  one.is_slow = testing::kEmulated;
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  one.enter = [](int variant) { cuda_on_cpu::set_options({static_cast<std::uint64_t>(variant)}); };
#endif
  return {one};
}

namespace cuda {
namespace {

using testing::OnDevice;
using testing::random_data;

struct CudaKernels : testing::CudaTest {
  void SetUp() override {
    CudaTest::SetUp();
    if (!testing::kEmulated) GTEST_SKIP() << "only the fake runtime counts kernels";
  }
};

// A long row is read once, and its weight's gradient is added up beside it; otherwise sums over
// rows and the gradient of rows are kernels of their own.
template <class T>
void expect_long_rows_read_once() {
  const std::int64_t rows = 40;
  for (const auto& [cols, once] : {std::pair<std::int64_t, bool>{256, false},
                                   {520, true},
                                   {8192, true},
                                   {8200, false},
                                   {1027, false}}) {
    const OnDevice<T> x(random_data<T>(1, rows * cols).typed), w(random_data<T>(2, cols).typed);
    const OnDevice<T> d_x(rows * cols);
    const OnDevice<float> rstd(std::vector<float>(static_cast<std::size_t>(rows), 1.0f));
    const OnDevice<float> workspace(norm_partial_sums(rows, cols) * cols), d_w(cols);
    const host::Rows shape = host::Rows::matrix(rows, cols);
    const std::int64_t launched = testing::kernels_launched();
    norm_backward<T, float>(
        nullptr, {shape, shape, x.data(), w.data(), rstd.data(), x.data(), nullptr, d_x.data()},
        d_w.data(), workspace.data());
    EXPECT_EQ(testing::kernels_launched() - launched, once ? 2 : 3) << cols;
    d_w.get();
  }
}

TEST_F(CudaKernels, RmsNormReadsLongRowsOnce) {
  expect_long_rows_read_once<float>();
  expect_long_rows_read_once<BFloat16>();
}

TEST_F(CudaKernels, Fp8OfBothCopiesReadsATensorTwice) {
  const OnDevice<BFloat16> from(random_data<BFloat16>(5, 64 * 64).typed);
  for (const auto& [scaling, kernels] :
       {std::pair{Fp8Scaling::kTensor, 2}, std::pair{Fp8Scaling::kRows, 4},
        std::pair{Fp8Scaling::kBlocks, 1}}) {
    const std::int64_t bytes = fp8_scale_bytes(scaling, 64, 64);
    const OnDevice<std::uint8_t> codes(4096), columns(4096), scales(bytes), column_scales(bytes);
    const auto matrix = [scale = scaling](const auto& of, const auto& scaled_by) {
      return Fp8Matrix{of.data(), scaled_by.data(), 64, 64, Fp8Format::kE4M3, scale};
    };
    const std::int64_t before = testing::kernels_launched();
    quantize(nullptr, {from.data(), 64, 64}, matrix(codes, scales), matrix(columns, column_scales));
    EXPECT_EQ(testing::kernels_launched() - before, kernels);
    codes.get();
  }
}

using CudaCopies = testing::CudaTest;
TEST_F(CudaCopies, RowsOfSingleBytesLeaveTheRest) {
  for (const std::int64_t row_bytes : {1, 3, 5001}) {
    for (const std::int64_t gap : {0, 1, 16}) {
      const std::int64_t rows = 7, stride = row_bytes + gap, wide = 2 * stride;
      std::vector<std::uint8_t> in, expected(static_cast<std::size_t>(rows * wide));
      for (std::int64_t i = 0; i < rows * stride; ++i)
        in.push_back(static_cast<std::uint8_t>(i * 7));
      for (std::int64_t i = 0; i < rows * row_bytes; ++i) {
        const std::int64_t row = i / row_bytes, at = i % row_bytes;
        expected[static_cast<std::size_t>(row * wide + at)] =
            in[static_cast<std::size_t>(row * stride + at)];
      }
      const OnDevice<std::uint8_t> from(in), to(std::vector<std::uint8_t>(expected.size()));
      copy_rows(nullptr, from.data(), stride, to.data(), wide, rows, row_bytes);
      EXPECT_EQ(to.get(), expected) << row_bytes << " " << gap;
    }
  }
}

TEST(CudaRefusals, SumsOfTooManyAndTreesOfOtherNumbers) {
  float* nowhere = nullptr;
  const auto folds = [&](std::size_t count, auto fold) {
    fold(nullptr, std::vector<const void*>(count), nowhere, false, 0);
  };
  EXPECT_THROW(folds(kMaxFoldInputs + 1, fold<float, float>), Error);
  EXPECT_THROW(folds(3, fold_tree<float, float>), Error);
  EXPECT_THROW(folds(2 * kMaxFoldInputs, fold_tree<float, float>), Error);
}

TEST(CudaRefusals, NaiveAttentionOfWhatItCannotHold) {
  const auto attention = make_naive_attention();
  EXPECT_EQ(attention->refusal({.shape = {1, 1, 1, 1, 257, 1.0}}),
            "takes heads of at most 256 numbers, not 257");
  EXPECT_NE(attention->refusal({.shape = {1, 1, 3, 2, 64, 1.0}}), "");
}

}  // namespace
}  // namespace cuda
}  // namespace shardwright::kernels
