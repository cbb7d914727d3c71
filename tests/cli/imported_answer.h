// SPDX-License-Identifier: Apache-2.0
// What tests of `shardwright import-config` share.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace shardwright::cli {

using nlohmann::json;
using testing::ProgramResult;
using testing::run_program;

inline ProgramResult import_of(const std::string& file, const std::vector<std::string>& flags) {
  std::vector<std::string> arguments{SHARDWRIGHT_BINARY, "import-config", file, "--cluster",
                                     "dgx-h100"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return run_program(arguments, {"LC_ALL=C"});
}

/// The document of a file that is taken.
inline json imported(const std::string& file, std::vector<std::string> flags) {
  flags.emplace_back("--json");
  const ProgramResult result = import_of(file, flags);
  EXPECT_EQ(result.exit_code, 0) << file << ": " << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

inline std::string assumed(const json& answer) {
  return answer.at("assumed").dump();
}

inline bool leaves(const json& answer, const std::string& key) {
  for (const json& one : answer.at("not_taken")) {
    if (one.at("key") == key) return true;
  }
  return false;
}

}  // namespace shardwright::cli
