// SPDX-License-Identifier: Apache-2.0
// Turns what the parser refused into the project's errors: one sentence, the flag and value named,
// exit code 2.
#pragma once

#include <string>
#include <vector>

#include "sim/core/base/error.h"

namespace shardwright::cli {

/// What is known of a line after it could not be parsed.
struct FailedParse {
  std::string program;
  std::string verb;                   // that was given; empty: none
  std::vector<std::string> verbs;     // that there are
  std::vector<std::string> flags;     // "--gpus": of the program and of the verb
  std::vector<std::string> unplaced;  // words that mean nothing there
  bool wrong_number_of_values = false;
  bool something_is_missing = false;
  std::string said;  // by the parser
};

Error usage_error(const FailedParse& failed);

}  // namespace shardwright::cli
