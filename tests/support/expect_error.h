// SPDX-License-Identifier: Apache-2.0
// How the program refuses: an exit code, nothing on standard output, one sentence after "error: ".
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/run_program.h"

namespace shardwright::testing {

inline void expect_error(const ProgramResult& result, int exit_code,
                         const ::testing::Matcher<std::string>& sentence) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, ::testing::StartsWith("error: "));
  EXPECT_THAT(result.err, sentence);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

/// The sentence has this part.
inline void expect_error(const ProgramResult& result, int exit_code, const char* part) {
  expect_error(result, exit_code, ::testing::HasSubstr(part));
}

}  // namespace shardwright::testing
