// SPDX-License-Identifier: Apache-2.0
// Runs a program as a user would and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace shardwright::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when one ended it, as in a shell
  std::string out;
  std::string err;
};

/// `arguments` begin with the program's path. `environment` holds "NAME=value" to set and "NAME" to
/// unset. Standard output goes to `stdout_path` when that is given, and `out` stays empty.
ProgramResult run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {},
                          const std::string& stdout_path = {});

}  // namespace shardwright::testing
