// SPDX-License-Identifier: Apache-2.0
// The settings of a run as a file. What was read is written and read again to the same values.
#include "cli/run/settings.h"
#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_run_file(std::string_view input) {
  cli::RunSettings settings;
  settings.set_flag(cli::kConfig, scratch_file("run.ini", input).string());
  settings.resolve({});
  cli::RunSettings again;
  again.set_flag(cli::kConfig, scratch_file("again.ini", settings.ini("again")).string());
  again.resolve({});
  for (const cli::SettingInfo& info : cli::setting_table()) {
    SHARDWRIGHT_CHECK(settings.text(info.key) == again.text(info.key), "{}: '{}' became '{}'",
                      info.key, settings.text(info.key), again.text(info.key));
  }
}

SHARDWRIGHT_FUZZ_TARGET(run_file, fuzz_run_file, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
