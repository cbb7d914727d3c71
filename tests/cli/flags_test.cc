#include "cli/flags/flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

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

TEST(ParseNumber, IsFiniteAndInRange) {
  EXPECT_DOUBLE_EQ(parse_number("--gpus", "-1.5e3"), -1500.0);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "inf"); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "1,5"); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([] { parse_number("--gpus", "2", {.least = 0, .most = 1}); }),
            ExitCode::kBadInput);
}

TEST(AddCount, NamesTheFlagOnACommandLine) {
  CLI::App app;
  std::int64_t gpus = 8;
  std::optional<std::int64_t> layers;
  add_count(app, "--gpus", gpus, "GPUs");
  add_count(app, "--layers", layers, "layers", {.least = 0});
  app.parse("--layers 0");
  EXPECT_EQ(gpus, 8);
  EXPECT_EQ(layers, 0);
  EXPECT_EQ(code_of([&app] { app.parse("--gpus -1"); }), ExitCode::kBadInput);
}

}  // namespace
}  // namespace shardwright::cli
