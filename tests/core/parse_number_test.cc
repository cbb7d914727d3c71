// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/parse_number.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/core/common.h"

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

// The code of the Error that `parse` throws; kDone when it throws none.
template <typename Parse>
ExitCode code_of(Parse parse) {
  try {
    parse();
    return ExitCode::kDone;
  } catch (const Error& error) {
    EXPECT_NE(std::string{error.what()}.find("--gpus"), std::string::npos) << error.what();
    return error.code();
  }
}

TEST(ParseCount, ReadsDecimalNumbersOnly) {
  EXPECT_EQ(parse_count("--gpus", "256"), 256);
  EXPECT_EQ(parse_count("--gpus", "010"), 10);
  EXPECT_EQ(parse_count("--gpus", "2e12"), 2000000000000);
  for (const char* text : {"", "abc", "8x", "0x10", " 8", "nan", "--gpus"}) {
    EXPECT_EQ(code_of([text] { parse_count("--gpus", text); }), ExitCode::kUsage) << text;
  }
}

TEST(ParseCount, OutOfRangeIsABadValue) {
  for (const char* text : {"0", "-8", "1.5", "99999999999999999999", "1e300"}) {
    EXPECT_EQ(code_of([text] { parse_count("--gpus", text); }), ExitCode::kBadInput) << text;
  }
  EXPECT_EQ(parse_count("--gpus", "0", {.least = 0, .most = 3}), 0);
  EXPECT_EQ(code_of([] { parse_count("--gpus", "4", {.least = 0, .most = 3}); }),
            ExitCode::kBadInput);
}

TEST(ParseCount, ReadsNumbersAsPeopleWriteThem) {
  EXPECT_EQ(parse_count("--gpus", "15T"), 15'000'000'000'000);
  EXPECT_EQ(parse_count("--gpus", "1.1B"), 1'100'000'000);
  EXPECT_EQ(parse_count("--gpus", "1.5m"), 1'500'000);
  EXPECT_EQ(parse_count("--gpus", "32k"), 32'000);
  EXPECT_EQ(parse_count("--gpus", "1,024"), 1024);
  EXPECT_EQ(parse_count("--gpus", "8k", {.least = 1, .most = 1 << 20, .binary_k = true}), 8192);
  EXPECT_EQ(parse_count("--gpus", "0.5K", {.least = 1, .most = 1 << 20, .binary_k = true}), 512);
  EXPECT_EQ(code_of([] { parse_count("--gpus", "1.0001k"); }), ExitCode::kBadInput);
  for (const char* text : {"T", "k", "1,02", "1024,", ",024", "1,0244", "1e3M", "5 kk", "1kM"})
    EXPECT_EQ(code_of([text] { parse_count("--gpus", text); }), ExitCode::kUsage) << text;
}

TEST(ParseNumber, ReadsAmountsAsPeopleWriteThem) {
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "$5M"), 5e6);
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "$5,000,000"), 5e6);
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "2.35"), 2.35);
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "1.5e13"), parse_number("--gpus", "15T"));
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "1,234.5"), 1234.5);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "$"); }), ExitCode::kUsage);
}

TEST(ParseNumber, IsFiniteAndInRange) {
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "-1.5e3"), -1500.0);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "inf"); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "1,5"); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "2", {.least = 0, .most = 1}); }),
            ExitCode::kBadInput);
}

TEST(ParseDays, NeedsAUnit) {
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "36h"), 1.5);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "30d"), 30);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "1.5w"), 10.5);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "1y"), 365);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "60 days"), 60);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "1 week"), 7);
  EXPECT_DOUBLE_EQ(parse_days("--deadline", "2months"), 365.0 / 6);
  for (const char* text :
       {"", "d", "days", "30", "30 ", "3 d d", "30 das", "30s", "30x", "1e99d", "-2d", "nand"})
    EXPECT_THROW(parse_days("--deadline", text), Error) << text;
}

TEST(SplitCommas, KeepsEmptyWords) {
  EXPECT_THAT(split_commas("a,bc"), ElementsAre("a", "bc"));
  EXPECT_THAT(split_commas(""), ElementsAre(""));
  EXPECT_THAT(split_commas(",a,"), ElementsAre("", "a", ""));
}

TEST(FailWord, NamesTheNearest) {
  EXPECT_EQ(testing::refusal_of([] {
              fail_word("--strategy", "yafdsp", {"ddp", "yafsdp"});
            }),
            "--strategy is 'yafdsp', but it must be one of ddp, yafsdp, did you mean 'yafsdp'?");
}

}  // namespace

}  // namespace shardwright
