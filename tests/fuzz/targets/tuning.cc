// SPDX-License-Identifier: Apache-2.0
// What `tune --json` said, which `report` reads.
#include "cli/render/tuning_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_tuning(std::string_view input) {
  cli::read_tuning(scratch_file("tuning.json", input));
}

SHARDWRIGHT_FUZZ_TARGET(tuning, fuzz_tuning, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
