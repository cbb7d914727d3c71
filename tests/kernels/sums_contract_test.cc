// SPDX-License-Identifier: Apache-2.0
// Sums over arrays and rows: squares, totals of a step, gradients of biases.
#include <bit>

#include "kernels/exact_sum.h"
#include "sim/core/workspace.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::contract {
namespace {

struct SquaresKernels : Kernels {
  /// Of what was added `times` times.
  static ExactSum sum_of(const Place& on, DType type, const Numbers& x, std::int64_t offset = 0,
                         int times = 1) {
    const auto in = on.put(type, x, offset);
    const auto words = on.raw(std::vector<std::int64_t>(ExactSum::kWords));
    for (int i = 0; i < times; ++i) on->sum_of_squares(on.stream, in.array(), words.data());
    std::array<std::int64_t, ExactSum::kWords> got{};
    std::ranges::copy(words.get(), got.begin());
    return ExactSum::from_words(got);
  }
  /// In all variants.
  ExactSum sum(const Numbers& x, std::int64_t offset = 0, int times = 1) {
    const ExactSum result = sum_of(first(), type(), x, offset, times);
    everywhere([&](const Place& on) -> Results {
      EXPECT_EQ(sum_of(on, type(), x, offset, times).words(), result.words());
      return {};
    });
    return result;
  }
  static ExactSum expected(const Numbers& x) {
    std::vector<float> floats(x.begin(), x.end());
    ExactSum sum;
    sum.add_squares(std::span<const float>(floats));
    return sum;
  }
};
INSTANTIATE_TEST_SUITE_P(On, SquaresKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(SquaresKernels, AreTheWordsOfTheDefinition) {
  for (const std::int64_t size : shapes<std::int64_t>({1, 5, 8, 31, 257, 2048, 50021}, {200001})) {
    const Numbers x = random(type(), 1, size, 1e-3);
    for (const std::int64_t offset : {0, 1, 3}) {
      EXPECT_EQ(sum(x, offset).words(), expected(x).words()) << size;
    }
  }
}

TEST_P(SquaresKernels, OfShardsAreThatOfTheWhole) {
  const Numbers x = random(type(), 7, 9001, 1e-3);
  ExactSum shards;
  for (std::size_t begin = 0; begin < x.size(); begin += 3333) {
    const auto end = std::min(x.size(), begin + 3333);
    shards.merge(sum({x.begin() + static_cast<std::ptrdiff_t>(begin),
                      x.begin() + static_cast<std::ptrdiff_t>(end)}));
  }
  EXPECT_EQ(shards.words(), sum(x).words());
}

// Blocks that the fast way can sum exactly, and blocks that it must leave to the slow one.
TEST_P(SquaresKernels, AreExactForAnyMixOfMagnitudes) {
  const RandomStream stream{.seed = 9};
  for (const int spread : {0, 10, 30, 31, 33, 45, 60, 250}) {
    Numbers x;
    for (std::uint64_t i = 0; i < 5000; ++i) {
      const auto exponent = stream.below(i, static_cast<std::uint64_t>(spread) + 1);
      x.push_back(
          rounded(type(), std::ldexp(stream.uniform(i) - 0.5f, 60 - static_cast<int>(exponent))));
    }
    EXPECT_EQ(sum(x).words(), expected(x).words()) << spread;
  }
}

TEST_P(SquaresKernels, ExtremesAndNonFinite) {
  const double least = type() == DType::kFp32 ? 0x1p-149 : 0x1p-133;
  Numbers x(3000, least);
  EXPECT_EQ(sum(x).value(), 3000 * least * least);
  x.assign(3000, -0x1p127);
  EXPECT_EQ(sum(x).value(), 3000 * 0x1p254);
  x.assign(3000, -rounded(type(), 0x1.fep127));
  x[0] = least;
  EXPECT_EQ(sum(x).words(), expected(x).words());
  x[2999] = INFINITY;
  x[1] = NAN;
  EXPECT_EQ(sum(x).nonfinite(), 2);
  EXPECT_TRUE(std::isnan(sum(x).value()));
  x.assign(10, 0.0);
  EXPECT_EQ(sum(x).value(), 0.0);
}

TEST_P(SquaresKernels, AddToWhatIsThere) {
  const Numbers x = random(type(), 1, 1000);
  ExactSum twice = expected(x);
  twice.merge(expected(x));
  EXPECT_EQ(sum(x, 0, 2).words(), twice.words());
}

struct SquaresOfLongArraysKernels : SquaresKernels {};
INSTANTIATE_TEST_SUITE_P(On, SquaresOfLongArraysKernels, ::testing::ValuesIn(fp32_cases()),
                         parameter_name);

// More than all blocks take in one round.
TEST_P(SquaresOfLongArraysKernels, AreTheWordsOfTheDefinition) {
  const Numbers part = random(type(), 3, 1 << 16, 1e-2);
  Numbers x;
  ExactSum whole;
  for (int i = 0; i < 17; ++i) {
    x.insert(x.end(), part.begin(), part.end());
    whole.merge(expected(part));
  }
  EXPECT_EQ(sum_of(first(), type(), x).words(), whole.words());
}

struct StepTotalsKernels : Kernels {
  struct Records {
    std::vector<std::int64_t> data;
    std::int64_t ranks, micro_steps;
    std::int64_t words() const { return std::ssize(data) / ranks; }
  };
  static Records make_records(std::int64_t ranks, std::int64_t micro_steps, double scale) {
    Records r{{}, ranks, micro_steps};
    const RandomStream stream{.seed = 11};
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> values;
      for (std::uint64_t i = 0; i < 50; ++i) {
        values.push_back(
            static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(rank) * 50 + i)));
      }
      ExactSum sum;
      sum.add_squares(std::span<const float>(values));
      for (const std::int64_t word : sum.words()) r.data.push_back(word);
      for (std::int64_t m = 0; m < micro_steps; ++m) {
        const auto at = static_cast<std::uint64_t>(rank * 1000 + m);
        r.data.push_back(std::bit_cast<std::int64_t>(100.0 + stream.normal(at)));
        r.data.push_back(static_cast<std::int64_t>(stream.below(at, 50)));
      }
    }
    return r;
  }
  /// What exec/device.h says.
  static exec::StepTotals expected(const Records& r, const exec::ClipOptions& options) {
    exec::StepTotals totals;
    std::array<std::int64_t, ExactSum::kWords> words{};
    for (std::int64_t rank = 0; rank < r.ranks; ++rank) {
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] += r.data[static_cast<std::size_t>(rank * r.words()) + i];
      }
    }
    for (std::int64_t m = 0; m < r.micro_steps; ++m) {
      for (std::int64_t rank = 0; rank < r.ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank * r.words() + 2 * m) + ExactSum::kWords;
        totals.loss += std::bit_cast<double>(r.data[at]);
        totals.tokens += r.data[at + 1];
      }
    }
    const double divisor = totals.tokens > 0 ? static_cast<double>(totals.tokens) : 1.0;
    totals.gradient_norm = std::sqrt(ExactSum::from_words(words).value()) / divisor;
    totals.scale = clip_factor(totals.gradient_norm, options.max_norm) / divisor;
    const bool too_large = options.skip_above > 0 && totals.gradient_norm > options.skip_above;
    if (!std::isfinite(totals.gradient_norm) || !std::isfinite(totals.loss) || too_large) {
      totals.scale = NAN;
    }
    return totals;
  }
  static void expect_same(double got, double right) {
    EXPECT_TRUE(got == right || (std::isnan(got) && std::isnan(right))) << got << ", not " << right;
  }
  void check(const Records& records, const exec::ClipOptions& options) {
    const auto data = first().raw(records.data);
    const auto totals = first().raw(std::vector<exec::StepTotals>(1));
    first()->finish_gradients(first().stream,
                              {data.data(), records.words(), records.ranks, records.micro_steps},
                              options, totals.data());
    const exec::StepTotals got = totals.get()[0], right = expected(records, options);
    expect_same(got.loss, right.loss);
    EXPECT_EQ(got.tokens, right.tokens);
    expect_same(got.gradient_norm, right.gradient_norm);
    expect_same(got.scale, right.scale);
  }
};
INSTANTIATE_TEST_SUITE_P(On, StepTotalsKernels, ::testing::ValuesIn(fp32_cases()), parameter_name);

TEST_P(StepTotalsKernels, AreThoseOfTheRecords) {
  for (const double scale : {1e-20, 1e-3, 1.0, 1e18}) {
    const Records records = make_records(8, 50, scale);  // more losses than one round
    check(records, {});
    check(records, {.max_norm = 1e-4});
    check(records, {.max_norm = 1e6});
    check(records, {.max_norm = 1.0, .skip_above = 1e-30});
  }
}

TEST_P(StepTotalsKernels, WithoutTokensOrWithNansThereIsNoUpdateByNonsense) {
  Records none = make_records(2, 1, 1.0);
  none.data[ExactSum::kWords + 1] = none.data[2 * ExactSum::kWords + 3] = 0;
  check(none, {.max_norm = 1.0});
  Records nan = make_records(2, 1, 1.0);
  nan.data[ExactSum::kWords - 1] = 1;
  check(nan, {.max_norm = 1.0});
  Records loss = make_records(2, 1, 1.0);
  loss.data[ExactSum::kWords] = std::bit_cast<std::int64_t>(static_cast<double>(INFINITY));
  check(loss, {.max_norm = 1.0});
}

struct BiasGradientKernels : Kernels {};
INSTANTIATE_TEST_SUITE_P(On, BiasGradientKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(BiasGradientKernels, MatchTheOracleAndAddWhatIsFinished) {
  struct Shape {
    std::int64_t rows, cols, first, stride;
  };
  // The last ones are parts of wider rows, as in packed projections.
  for (const auto& [rows, cols, first, stride] : shapes<Shape>({{1, 1, 0, 1},
                                                                {33, 264, 0, 264},
                                                                {70, 37, 0, 37},
                                                                {500, 16, 0, 16},
                                                                {5, 1000, 0, 1000},
                                                                {31, 77, 0, 80},
                                                                {40, 24, 8, 56},
                                                                {40, 24, 3, 56}},
                                                               {{1000, 77, 0, 80}})) {
    const Numbers all = random(type(), 1, rows * stride), before = random(DType::kFp32, 2, cols);
    const auto expected = reference::bias_gradient(columns(all, stride, first, cols), cols);
    const auto result =
        everywhere([&, cols = cols, first = first, stride = stride](const Place& on) -> Results {
          const auto d_y = on.put(type(), all), typed = on.nans(type(), cols);
          const auto alone = on.floats(cols), sum = on.put(DType::kFp32, before);
          const auto scratch = on.floats(kPartialSums * cols);
          const auto rows_of = d_y.matrix(stride).col_range(first, cols);
          on->bias_gradient(on.stream, rows_of, alone.array(), false, scratch.floats());
          on->bias_gradient(on.stream, rows_of, typed.array(), false, scratch.floats());
          on->bias_gradient(on.stream, rows_of, sum.array(), true, scratch.floats());
          return {alone.get(), typed.get(), sum.get()};
        });
    expect_close(result[0], expected, 2e-6, "d_bias");
    expect_close(result[1], expected, roundoff(type()) + 2e-6, "typed d_bias");
    for (std::size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(result[2][i], rounded(DType::kFp32, before[i] + result[0][i])) << i;
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
