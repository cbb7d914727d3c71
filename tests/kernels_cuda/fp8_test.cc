// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels give the codes and scales of the host's, which tests/kernels holds to the
// oracle.
#include "kernels/cuda/fp8.h"

#include <fmt/core.h>

#include <limits>

#include "kernels/host/fp8.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::Data;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;

class CudaFp8 : public testing::CudaTest {};

struct Copy {
  std::int64_t rows, cols;
  Fp8Format format;
  Fp8Scaling scaling;

  std::int64_t bytes() const { return fp8_scale_bytes(scaling, rows, cols); }
  Fp8Matrix at(std::uint8_t* codes, std::uint8_t* scales) const {
    return {codes, scales, rows, cols, format, scaling};
  }
};

struct Made {
  std::vector<std::uint8_t> codes, scales;
};

Made on_host(const std::vector<BFloat16>& numbers, std::int64_t rows, std::int64_t cols,
             bool transposed, const Copy& copy) {
  host::Parallel parallel(1);
  Made made{std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols)),
            std::vector<std::uint8_t>(static_cast<std::size_t>(copy.bytes()))};
  host::quantize<BFloat16>(parallel, {numbers.data(), rows, cols}, transposed,
                           copy.at(made.codes.data(), made.scales.data()));
  return made;
}

/// Rows and columns of other magnitudes, some zeros, a bad number where asked for.
Data<BFloat16> numbers_of(std::int64_t rows, std::int64_t cols, float bad) {
  Data<BFloat16> data = random_data<BFloat16>(5, rows * cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::int64_t row = i / cols, col = i % cols;
    const double factor =
        row == 3 || col == 5 ? 0 : std::exp2(static_cast<double>(row % 23 + col % 9) - 25);
    BFloat16& value = data.typed[static_cast<std::size_t>(i)];
    value = to_bf16(static_cast<float>(to_float(value) * factor));
  }
  if (bad != 0) data.typed[static_cast<std::size_t>(cols + 17)] = to_bf16(bad);
  return data;
}

void check(std::int64_t rows, std::int64_t cols, std::int64_t offset, float bad) {
  const Data<BFloat16> data = numbers_of(rows, cols, bad);
  const OnDevice<BFloat16> from(data.typed, offset);
  for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
    for (const Fp8Scaling scaling : {Fp8Scaling::kTensor, Fp8Scaling::kRows, Fp8Scaling::kBlocks}) {
      const Copy plain{rows, cols, format, scaling}, turned{cols, rows, format, scaling};
      const Made expected = on_host(data.typed, rows, cols, false, plain);
      const Made expected_turned = on_host(data.typed, rows, cols, true, turned);
      for (const int which : {1, 2, 3}) {
        const auto result = in_every_order([&] {
          const OnDevice<std::uint8_t> codes(rows * cols), columns(rows * cols);
          const OnDevice<std::uint8_t> scales(plain.bytes()), column_scales(turned.bytes());
          quantize(
              nullptr, {from.data(), rows, cols},
              (which & 1) != 0 ? plain.at(codes.data(), scales.data()) : Fp8Matrix{},
              (which & 2) != 0 ? turned.at(columns.data(), column_scales.data()) : Fp8Matrix{});
          return Outputs(codes.get(), scales.get(), columns.get(), column_scales.get());
        });
        const std::string what =
            fmt::format("[{}, {}] format {} scaling {} copies {}", rows, cols,
                        static_cast<int>(format), static_cast<int>(scaling), which);
        if ((which & 1) != 0) {
          EXPECT_EQ(result.get<0>(), expected.codes) << what;
          EXPECT_EQ(result.get<1>(), expected.scales) << what;
        }
        if ((which & 2) != 0) {
          EXPECT_EQ(result.get<2>(), expected_turned.codes) << what;
          EXPECT_EQ(result.get<3>(), expected_turned.scales) << what;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaFp8, CodesAndScalesAreTheHosts) {
  check(64, 64, 0, 0);
  // Parts of tiles, several tiles, addresses that hold no vectors.
  check(32, 96, 0, 0);
  check(160, 32, 1, 0);
}

TEST_F(CudaFp8, WhatIsNotFiniteReachesAsFarAsTheHosts) {
  check(32, 64, 0, std::numeric_limits<float>::infinity());
  check(32, 64, 0, -std::numeric_limits<float>::quiet_NaN());
}

TEST_F(CudaFp8, ATensorOfBothCopiesIsReadTwice) {
  if (!testing::kEmulated) GTEST_SKIP() << "only the fake runtime counts kernels";
  const Data<BFloat16> data = numbers_of(64, 64, 0);
  const OnDevice<BFloat16> from(data.typed);
  for (const auto& [scaling, kernels] :
       {std::pair{Fp8Scaling::kTensor, 2}, std::pair{Fp8Scaling::kRows, 4},
        std::pair{Fp8Scaling::kBlocks, 1}}) {
    const Copy copy{64, 64, Fp8Format::kE4M3, scaling};
    const OnDevice<std::uint8_t> codes(4096), columns(4096), scales(copy.bytes()),
        column_scales(copy.bytes());
    const std::int64_t before = testing::kernels_launched();
    quantize(nullptr, {from.data(), 64, 64}, copy.at(codes.data(), scales.data()),
             copy.at(columns.data(), column_scales.data()));
    EXPECT_EQ(testing::kernels_launched() - before, kernels);
    codes.get();
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
