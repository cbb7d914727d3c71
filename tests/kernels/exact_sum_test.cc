// SPDX-License-Identifier: Apache-2.0
#include "kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/random.h"

namespace shardwright::kernels {
namespace {

ExactSum sum_of(const std::vector<float>& values) {
  ExactSum sum;
  sum.add_squares(std::span<const float>(values));
  return sum;
}

/// Floats of every exponent, subnormals among them.
std::vector<float> wild_floats(std::size_t count, std::uint64_t seed) {
  const RandomStream stream{.seed = seed};
  std::vector<float> values;
  for (std::uint64_t i = 0; values.size() < count; ++i) {
    const float value = std::bit_cast<float>(stream.word(i));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(ExactSum, SmallCasesAreExact) {
  EXPECT_EQ(sum_of({}).value(), 0.0);
  EXPECT_EQ(sum_of({3.0f, -4.0f}).value(), 25.0);
  EXPECT_EQ(sum_of({0x1p-149f}).value(), 0x1p-298);
  EXPECT_EQ(sum_of({0x1p127f, 0x1p127f, 0x1p127f, 0x1p127f}).value(), 0x1p256);
  // A double sum would lose the small one among the large ones.
  EXPECT_EQ(sum_of({0x1p40f, 1.0f}).value(), 0x1p80);
  ExactSum large = sum_of({0x1p40f, 1.0f});
  EXPECT_NE(large.words(), sum_of({0x1p40f}).words());
}

TEST(ExactSum, AgreesWithExtendedPrecision) {
  const RandomStream stream{.seed = 1};
  std::vector<float> values(10000);
  random_normal(stream, 0, 0.0, 1e-3, values);
  long double expected = 0;
  for (const float value : values) expected += static_cast<long double>(value) * value;
  EXPECT_NEAR(sum_of(values).value(), static_cast<double>(expected),
              1e-15 * static_cast<double>(expected));
}

TEST(ExactSum, OrderAndSplitDoNotMatter) {
  std::vector<float> values = wild_floats(5000, 2);
  const auto words = sum_of(values).words();
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(sum_of(values).words(), words);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(sum_of(values).words(), words);
  for (const std::size_t cut :
       {std::size_t{0}, std::size_t{1}, std::size_t{1234}, std::size_t{4999}}) {
    ExactSum parts = sum_of({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cut)});
    parts.merge(sum_of({values.begin() + static_cast<std::ptrdiff_t>(cut), values.end()}));
    EXPECT_EQ(parts.words(), words) << cut;
  }
}

TEST(ExactSum, RanksAddTheirWordsAsIntegers) {
  const std::vector<float> values = wild_floats(999, 3);
  std::array<std::int64_t, ExactSum::kWords> total{};
  for (std::size_t rank = 0; rank < 7; ++rank) {
    std::vector<float> shard;
    for (std::size_t i = rank; i < values.size(); i += 7) shard.push_back(values[i]);
    const auto words = sum_of(shard).words();
    for (std::size_t w = 0; w < words.size(); ++w) total[w] += words[w];
  }
  EXPECT_EQ(ExactSum::from_words(total).words(), sum_of(values).words());
  EXPECT_EQ(ExactSum::from_words(total).value(), sum_of(values).value());
}

TEST(ExactSum, Bf16IsItsFloat) {
  const std::vector<BFloat16> values = {to_bf16(1.5f), to_bf16(-0.1f), to_bf16(3e30f)};
  std::vector<float> wide;
  for (const BFloat16 value : values) wide.push_back(to_float(value));
  ExactSum sum;
  sum.add_squares(std::span<const BFloat16>(values));
  EXPECT_EQ(sum.words(), sum_of(wide).words());
}

TEST(ExactSum, NonFiniteIsReported) {
  const ExactSum sum = sum_of({1.0f, INFINITY, NAN, -INFINITY});
  EXPECT_EQ(sum.nonfinite(), 3);
  EXPECT_TRUE(std::isnan(sum.value()));
}

}  // namespace
}  // namespace shardwright::kernels
