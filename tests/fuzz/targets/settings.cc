// SPDX-License-Identifier: Apache-2.0
// Another trainer's settings in Python and in a shell script: the readers that are this project's.
#include "cli/config/setting.h"
#include "sim/core/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void parse(std::string_view input) {
  const cli::Settings shell = cli::settings_language::parse_shell(input, "run.sh");
  SHARDWRIGHT_CHECK(shell.size() <= cli::kMostSettings, "bounded");
  const cli::Settings python = cli::settings_language::parse_python(input, "config.py", "");
  SHARDWRIGHT_CHECK(python.size() <= cli::kMostSettings, "bounded");
}

SHARDWRIGHT_FUZZ_TARGET(settings, parse, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
