#include "sim/core/parse_number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
