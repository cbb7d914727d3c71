// SPDX-License-Identifier: Apache-2.0
// The whole program behind main(): parse, run the chosen verb, turn every failure into an exit
// code.
#pragma once

#include <memory>
#include <vector>

#include "cli/verbs/verb.h"

namespace shardwright::cli {

/// Never throws. Errors are one sentence on stderr; the result is the process's exit code.
/// `absent` names verbs that this build leaves out: asking for one is told apart from a typing
/// error.
int run_program(int argc, const char* const* argv, const std::vector<std::unique_ptr<Verb>>& verbs,
                const std::vector<std::string>& absent = {});

}  // namespace shardwright::cli
