// SPDX-License-Identifier: Apache-2.0
// The log of a program of nccl-tests.
#include "profiles/import/import_observations.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/observations.h"

namespace shardwright::fuzz {
namespace {

void fuzz_nccl_tests(std::string_view input) {
  check_observations(profiles::import_observations({scratch_file("all_reduce.log", input)}));
}

SHARDWRIGHT_FUZZ_TARGET(nccl_tests, fuzz_nccl_tests, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
