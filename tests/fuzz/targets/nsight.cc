// SPDX-License-Identifier: Apache-2.0
// A database of Nsight Systems. Its rows are a stranger's, and so are its tables.
#include "profiles/import/import_observations.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/observations.h"

namespace shardwright::fuzz {
namespace {

void fuzz_nsight(std::string_view input) {
  check_observations(profiles::import_observations({scratch_file("run.sqlite", input)}));
}

SHARDWRIGHT_FUZZ_TARGET(nsight, fuzz_nsight, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
