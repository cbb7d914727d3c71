// SPDX-License-Identifier: Apache-2.0
// A trace of torch.profiler, plain or gzip.
#include "profiles/import/import_observations.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/observations.h"

namespace shardwright::fuzz {
namespace {

void fuzz_kineto(std::string_view input) {
  check_observations(profiles::import_observations({scratch_file("trace.json", input)}));
}

SHARDWRIGHT_FUZZ_TARGET(kineto, fuzz_kineto, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
