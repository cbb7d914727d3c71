// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/parse_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"

namespace shardwright {
namespace {

using ::testing::ElementsAre;

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
  try {
    fail_word("--strategy", "yafdsp", {"ddp", "yafsdp"});
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "--strategy is 'yafdsp', but it must be one of ddp, yafsdp, did you mean "
                 "'yafsdp'?");
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
  }
}

}  // namespace
}  // namespace shardwright
