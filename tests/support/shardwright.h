// SPDX-License-Identifier: Apache-2.0
// The program that was built, run as a user would. For tests that are given SHARDWRIGHT_BINARY.
#pragma once

#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace shardwright::testing {

inline ProgramResult shardwright(std::vector<std::string> words) {
  words.insert(words.begin(), SHARDWRIGHT_BINARY);
  return run_program(words);
}

}  // namespace shardwright::testing
