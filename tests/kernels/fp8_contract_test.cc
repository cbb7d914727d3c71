// SPDX-License-Identifier: Apache-2.0
// Matrices in fp8. (Products of them: fp8_test.cc, and tests/exec_cuda for libraries.)
#include <fmt/core.h>

#include "kernels/fp8.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/fp8.h"

namespace shardwright::kernels::contract {
namespace {

using Bytes8 = std::vector<std::uint8_t>;

/// The memory of a matrix in fp8, on a device.
struct Quantized {
  OnDevice<std::uint8_t> codes, scales;
  Fp8Matrix matrix;

  Quantized(const Place& on, const Fp8Matrix& shape)
      : codes(on.raw(Bytes8(static_cast<std::size_t>(shape.rows * shape.cols), 0x7f))),
        scales(on.raw(Bytes8(
            static_cast<std::size_t>(fp8_scale_bytes(shape.scaling, shape.rows, shape.cols))))),
        matrix(shape) {
    matrix.codes = codes.data();
    matrix.scales = scales.data();
  }
};

Numbers turned_around(const Numbers& matrix, std::int64_t cols) {
  Numbers result;
  for (std::int64_t col = 0; col < cols; ++col) {
    const Numbers one = columns(matrix, cols, col, 1);
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

/// What numbers are multiplied by again, by where scales lie.
Numbers divisors(const Bytes8& scales, const Fp8Matrix& shape) {
  Numbers result;
  for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i) {
    const std::int64_t row = i / shape.cols, col = i % shape.cols;
    if (shape.scaling == Fp8Scaling::kBlocks) {
      result.push_back(e8m0_to_float(scales[static_cast<std::size_t>(
          block_scale_index(row, col / kFp8Block, shape.cols / kFp8Block))]));
      continue;
    }
    float scale;
    const std::int64_t place = shape.scaling == Fp8Scaling::kTensor ? 1 : row;
    std::memcpy(&scale, scales.data() + 4 * place, sizeof scale);
    result.push_back(scale);
  }
  return result;
}

struct Fp8Kernels : Kernels {
  /// Rows and columns of other magnitudes, some zeros.
  Numbers uneven(std::int64_t rows, std::int64_t cols) const {
    Numbers numbers = random(type(), 5, rows * cols);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const std::int64_t row = i / cols, col = i % cols;
      const bool zero = row == 3 || col == 5;
      numbers[static_cast<std::size_t>(i)] *=
          zero ? 0 : std::exp2(static_cast<double>(row % 23 + col % 9) - 25);
      numbers[static_cast<std::size_t>(i)] = rounded(type(), numbers[static_cast<std::size_t>(i)]);
    }
    return numbers;
  }

  /// All must give the bits of the slowest host. The oracle, which is slow, too, is not asked of
  /// numbers that are not finite, nor of other hosts.
  void check(std::int64_t rows, std::int64_t cols, std::int64_t offset = 0, double bad = 0) {
    const bool asks = bad == 0 && !(executor().is_host && executor().is_fused);
    Numbers numbers = uneven(rows, cols);
    if (bad != 0) numbers[static_cast<std::size_t>(cols + 17)] = bad;
    for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
      for (const auto scaling : {Fp8Scaling::kTensor, Fp8Scaling::kRows, Fp8Scaling::kBlocks}) {
        const Fp8Matrix plain{nullptr, nullptr, rows, cols, format, scaling};
        const Fp8Matrix turned{nullptr, nullptr, cols, rows, format, scaling};
        reference::Quantized expected[2];
        if (asks) {
          expected[0] = reference::quantize(format, scaling, numbers, cols);
          expected[1] = reference::quantize(format, scaling, turned_around(numbers, cols), rows);
        }
        for (const int copies : {1, 2, 3}) {
          const auto compute = [&](const Place& on) -> Results {
            const auto from = on.put(type(), numbers, offset);
            const Quantized as_is(on, plain), around(on, turned);
            on->quantize(on.stream, from.matrix(cols),
                         (copies & 1) != 0 ? as_is.matrix : Fp8Matrix{},
                         (copies & 2) != 0 ? around.matrix : Fp8Matrix{});
            return {as_is.codes.numbers(), as_is.scales.numbers(), around.codes.numbers(),
                    around.scales.numbers()};
          };
          const auto result = everywhere(compute);
          const std::string what =
              fmt::format("[{}, {}] format {} scaling {} copies {}", rows, cols,
                          static_cast<int>(format), static_cast<int>(scaling), copies);
          EXPECT_TRUE(same_bits(compute(Place(make_host(1, host::Isa::kBaseline))), result))
              << what;
          for (const bool turns : {false, true}) {
            if ((copies & (turns ? 2 : 1)) == 0 || !asks) continue;
            const Fp8Matrix& shape = turns ? turned : plain;
            const reference::Quantized& right = expected[turns ? 1 : 0];
            const Numbers& codes = result[turns ? 2 : 0];
            const Numbers& scales = result[turns ? 3 : 1];
            EXPECT_EQ(codes, Numbers(right.codes.begin(), right.codes.end())) << what;
            EXPECT_EQ(divisors({scales.begin(), scales.end()}, shape), right.divisors) << what;
          }
          if (HasFailure()) return;
        }
      }
    }
  }
};
constexpr auto takes_type = [](const Executor& executor, DType type) {
  return executor.is_host || type == DType::kBf16;
};
INSTANTIATE_TEST_SUITE_P(On, Fp8Kernels, ::testing::ValuesIn(cases(takes_type)), parameter_name);

TEST_P(Fp8Kernels, CodesAndScalesAreTheOracles) {
  // Parts of tiles, several tiles, addresses that hold no vectors.
  check(64, 64);
  check(32, 96);
  check(160, 32, 1);
  // More than one piece of a row, more than one task of the host.
  if (executor().is_slow) return;
  if (type() == DType::kFp32) check(32, 160);
  if (type() == DType::kBf16) check(1088, 32);
}

TEST_P(Fp8Kernels, WhatIsNotFiniteReachesAsFarAsOnTheHost) {
  check(32, 64, 0, INFINITY);
  check(32, 64, 0, -NAN);
}

}  // namespace
}  // namespace shardwright::kernels::contract
