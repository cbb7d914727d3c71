// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/parse_number.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace shardwright {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST(ParseNumber, WholeTextMustBeTheNumber) {
  EXPECT_EQ(parse_double("-2.5e3"), -2500.0);
  EXPECT_EQ(parse_int64("-17"), -17);
  for (const char* text :
       {"", " 1", "1 ", "+1", "1x", "0x10", "1,000", "nan", "inf", "1e999", "--1"}) {
    EXPECT_FALSE(parse_double(text)) << text;
    EXPECT_FALSE(parse_int64(text)) << text;
  }
}

// What stands in for from_chars where a library has none must be the same function.
TEST(ParseNumber, BothWaysOfReadingADoubleAgree) {
  for (const char* text : {"",
                           " 1",
                           "1 ",
                           "+1",
                           "1x",
                           "0x10",
                           "1,000",
                           "nan",
                           "inf",
                           "1e999",
                           "-1e999",
                           "--1",
                           "1e-999",
                           "-",
                           ".",
                           "e5",
                           "1e",
                           "1e+",
                           "1e+5",
                           "1e5.3",
                           "1.",
                           ".5",
                           "-.5",
                           "-0",
                           "00012",
                           "5e-324",
                           "2.2250738585072011e-308",
                           "1.7976931348623157e308",
                           "0.1",
                           "123456789012345678901234567890"}) {
    EXPECT_EQ(parse_double_by_locale(text), parse_double(text)) << text;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = fmt::format("{}", value);
    ASSERT_EQ(parse_double_by_locale(text), value) << text;
    ASSERT_EQ(parse_double(text), value) << text;
  }
}

TEST(ParseNumber, IntegersAreExactOrNothing) {
  EXPECT_EQ(parse_int64("9223372036854775807"), kMax);
  EXPECT_EQ(parse_int64("-9223372036854775808"), kMin);
  EXPECT_FALSE(parse_int64("9223372036854775808"));
  EXPECT_EQ(parse_int64("2e12"), 2'000'000'000'000);
  EXPECT_EQ(parse_int64("64.0"), 64);
  EXPECT_FALSE(parse_int64("3.5"));
  EXPECT_FALSE(parse_int64("1e30"));
}

TEST(ParseNumber, ExactIntegerKeepsItsRange) {
  EXPECT_EQ(exact_integer(-9223372036854775808.0), kMin);
  EXPECT_FALSE(exact_integer(9223372036854775808.0));
  EXPECT_FALSE(exact_integer(std::nan("")));
  EXPECT_FALSE(exact_integer(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(exact_integer(-0.0), 0);
}

}  // namespace
}  // namespace shardwright
