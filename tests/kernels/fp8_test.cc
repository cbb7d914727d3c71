// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/fp8.h"

#include <fmt/core.h>

#include <bit>

#include "kernels/host/matmul.h"
#include "kernels/host/simd/kernels.h"
#include "tests/kernels/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

constexpr Fp8Format kFormats[] = {Fp8Format::kE4M3, Fp8Format::kE5M2};
constexpr Fp8Scaling kScalings[] = {Fp8Scaling::kTensor, Fp8Scaling::kRows, Fp8Scaling::kBlocks};

TEST(Fp8, CodesAreWhatTheFormatsSay) {
  for (const Fp8Format format : kFormats) {
    for (int code = 0; code < 256; ++code) {
      if (format == Fp8Format::kE5M2 && (code & 0x7f) == 0x7c) continue;  // infinity: never written
      const auto c = static_cast<std::uint8_t>(code);
      const double expected = reference::fp8_value(format, c);
      const float value = fp8_to_float(format, c);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << code;
        continue;
      }
      EXPECT_EQ(value, expected) << code;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << code;
      EXPECT_EQ(to_fp8(format, value), c) << code;
    }
  }
}

TEST(Fp8, RoundsToTheNearestCodeAndTiesToEven) {
  const RandomStream stream{.seed = 12};
  for (const Fp8Format format : kFormats) {
    // Between every two codes: the middle, and the floats beside it.
    for (int code = 0; code < (format == Fp8Format::kE4M3 ? 0x7e : 0x7b); ++code) {
      const auto c = static_cast<std::uint8_t>(code);
      const float middle =
          (fp8_to_float(format, c) + fp8_to_float(format, static_cast<std::uint8_t>(code + 1))) / 2;
      for (const float value :
           {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
        ASSERT_EQ(to_fp8(format, value), reference::nearest_fp8(format, value)) << value;
        ASSERT_EQ(to_fp8(format, -value), reference::nearest_fp8(format, -value)) << value;
      }
    }
    for (std::uint64_t i = 0; i < 20000; ++i) {
      const float value = std::bit_cast<float>(stream.word(i));
      ASSERT_EQ(to_fp8(format, value), reference::nearest_fp8(format, value)) << value;
    }
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(fp8_to_float(format, to_fp8(format, 1e6f)), fp8_largest(format));
    EXPECT_EQ(fp8_to_float(format, to_fp8(format, -infinity)), -fp8_largest(format));
    EXPECT_TRUE(std::isnan(fp8_to_float(format, to_fp8(format, -infinity * 0))));
  }
}

TEST(Fp8, VectorCodeRoundsAsTheDefinition) {
  const RandomStream stream{.seed = 13};
  for (const Fp8Format format : kFormats) {
    for (const Isa isa : supported_isas()) {
      const Parallel parallel(1, isa);
      std::vector<float> numbers, back(4001);
      std::vector<std::uint8_t> codes(4001);
      for (std::uint64_t i = 0; i < 4001; ++i)
        numbers.push_back(std::bit_cast<float>(stream.word(i)));
      parallel.kernels().to_fp8(format, numbers.data(), 0.5f, codes.data(), 4001);
      parallel.kernels().from_fp8(format, codes.data(), 0.25f, back.data(), 4001);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        ASSERT_EQ(codes[i], to_fp8(format, numbers[i] * 0.5f)) << numbers[i];
        const float decoded = fp8_to_float(format, codes[i]) * 0.25f;
        ASSERT_TRUE(back[i] == decoded || (std::isnan(back[i]) && std::isnan(decoded)));
      }
    }
  }
}

TEST(Fp8, BlockScalesHaveAPlaceEach) {
  for (const auto& [rows, blocks] : {std::pair{1, 1}, std::pair{130, 5}, std::pair{256, 8}}) {
    std::vector<bool> taken(static_cast<std::size_t>(block_scales(rows, kFp8Block * blocks)));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t at = block_scale_index(r, b, blocks);
        ASSERT_LT(at, static_cast<std::int64_t>(taken.size()));
        EXPECT_FALSE(taken[static_cast<std::size_t>(at)]) << r << ", " << b;
        taken[static_cast<std::size_t>(at)] = true;
      }
    }
  }
  // The layout that the library's documentation draws: rows 32 apart are 4 bytes apart.
  EXPECT_EQ(block_scale_index(1, 0, 4), 16);
  EXPECT_EQ(block_scale_index(32, 0, 4), 4);
  EXPECT_EQ(block_scale_index(0, 3, 4), 3);
  EXPECT_EQ(block_scale_index(127, 3, 4), 511);
  EXPECT_EQ(block_scale_index(0, 4, 8), 512);
  EXPECT_EQ(block_scale_index(128, 0, 8), 1024);
}

/// Memory of an operand.
struct Operand {
  std::vector<std::uint8_t> codes, scales;
  Fp8Matrix matrix;

  Operand(std::int64_t rows, std::int64_t cols, Fp8Format format, Fp8Scaling scaling)
      : codes(static_cast<std::size_t>(rows * cols), 0x7f),
        scales(static_cast<std::size_t>(fp8_scale_bytes(scaling, rows, cols))),
        matrix{codes.data(), scales.data(), rows, cols, format, scaling} {}
};

TEST(Fp8, WhatIsNotFiniteShowsInEveryProductWithIt) {
  Parallel parallel(1);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const Fp8Scaling scaling : kScalings) {
      std::vector<float> x(64 * 64, 1.0f), y(64 * 64, 0.0f);
      x[70] = bad;
      Operand a(64, 64, Fp8Format::kE4M3, scaling), b(64, 64, Fp8Format::kE4M3, scaling);
      quantize<float>(parallel, {x.data(), 64, 64}, false, a.matrix);
      quantize<float>(parallel, {y.data(), 64, 64}, false, b.matrix);
      std::vector<float> out(64 * 64);
      fp8_matmul<float>(parallel, a.matrix, b.matrix, {out.data(), 64, 64});
      for (std::size_t i = 64; i < 128; ++i) ASSERT_TRUE(std::isnan(out[i])) << i;
    }
  }
}

TEST(Fp8, ProductsAreThoseOfTheRoundedValues) {
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const Shape& shape : {Shape{1, 3, 32}, Shape{33, 5, 320}, Shape{130, 200, 64}}) {
    const std::int64_t m = shape.m, n = shape.n, k = shape.k;
    const auto a = random_data<BFloat16>(1, m * k), b = random_data<BFloat16>(2, n * k);
    const auto kept = random_data<BFloat16>(4, m * n);
    for (const Fp8Scaling scaling : kScalings) {
      const auto left = reference::quantize(Fp8Format::kE5M2, scaling, a.exact, k);
      const auto right = reference::quantize(Fp8Format::kE4M3, scaling, b.exact, k);
      auto expected = reference::linear_forward(left.values, right.values, m, k, n);
      const std::string what = fmt::format("[{}, {}, {}]", m, n, k);
      on_every_isa(
          [&](Parallel& parallel) {
            Operand l(m, k, Fp8Format::kE5M2, scaling), r(n, k, Fp8Format::kE4M3, scaling);
            quantize<BFloat16>(parallel, {a.data(), m, k}, false, l.matrix);
            quantize<BFloat16>(parallel, {b.data(), n, k}, false, r.matrix);
            auto wide = poisoned<float>(m * n);
            fp8_matmul<float>(parallel, l.matrix, r.matrix, {wide.data(), m, n});
            auto sum = kept.typed;
            fp8_matmul<BFloat16>(parallel, l.matrix, r.matrix, {sum.data(), m, n}, Store::kAdd);
            return Outputs(wide, sum);
          },
          [&](const auto& result, const std::string& isa) {
            const double sums = 4 * std::sqrt(static_cast<double>(k)) * 0x1p-24;
            expect_close(result.template get<0>(), expected, 0x1p-24 + sums, isa + what);
            auto added = expected;
            for (std::size_t i = 0; i < added.size(); ++i) added[i] += kept.exact[i];
            expect_close(result.template get<1>(), added, unit_roundoff<BFloat16>() + sums,
                         isa + " added " + what);
          });
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
