// SPDX-License-Identifier: Apache-2.0
// What libFuzzer asks of a program: one input, and, where the target knows its format, a mutation
// of its own in every second turn. libFuzzer's own mutations keep finding what breaks the format.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t most_bytes);

namespace {

const shardwright::fuzz::FuzzTarget& target() {
  const auto& targets = shardwright::fuzz::fuzz_targets();
  SHARDWRIGHT_CHECK(targets.size() == 1, "{} targets are linked", targets.size());
  return targets.front();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shardwright::fuzz::accepts(target(), {reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most_bytes, unsigned seed) {
  if (target().mutate == nullptr || seed % 2 == 0) return LLVMFuzzerMutate(data, size, most_bytes);
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string changed = target().mutate(input, most_bytes, seed / 2);
  if (changed.size() > most_bytes || changed == input) {
    return LLVMFuzzerMutate(data, size, most_bytes);
  }
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
