// SPDX-License-Identifier: Apache-2.0
// The message of an OutOfMemoryError in a log.
#include "cli/memory/seen_memory.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_out_of_memory(std::string_view input) {
  cli::find_message(input);
}

SHARDWRIGHT_FUZZ_TARGET(out_of_memory, fuzz_out_of_memory, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
