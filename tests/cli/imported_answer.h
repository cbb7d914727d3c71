// SPDX-License-Identifier: Apache-2.0
// What tests of `shardwright import-config` share.
#pragma once

#include "tests/cli/program.h"

namespace shardwright::cli {

inline ProgramResult import_of(const std::string& file, const std::vector<std::string>& flags) {
  return run_program(
      joined({SHARDWRIGHT_BINARY, "import-config", file, "--cluster", "dgx-h100"}, flags),
      {"LC_ALL=C"});
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
