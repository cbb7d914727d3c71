// SPDX-License-Identifier: Apache-2.0
// A memory snapshot of PyTorch, which is a pickle, and the message of an OutOfMemoryError.
#include "cli/memory/seen_memory.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_snapshot(std::string_view input) {
  cli::find_message(input);
  cli::read_snapshot(std::string(input), "snapshot.pickle");
}

SHARDWRIGHT_FUZZ_TARGET(snapshot, fuzz_snapshot, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
