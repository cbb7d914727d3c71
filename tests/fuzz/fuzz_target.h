// SPDX-License-Identifier: Apache-2.0
// One parser of files or messages that strangers may have written, given any bytes.
//
// Whatever the input is, the parser returns or throws Error with one sentence; any other exception,
// a crash, a sanitizer's finding, much memory or much time is a finding. A target also holds what
// the parser returns against what it promises, with SHARDWRIGHT_CHECK: a plan that was read is
// written and read again to the same text, an observation lasts longer than 0.
//
// A target's file ends with SHARDWRIGHT_FUZZ_TARGET. In the build of scripts/fuzz each target is a
// program of its own with libFuzzer (libfuzzer.cc); in every other build all of them are one
// (replay_test.cc), which reads the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::fuzz {

/// Changes `input`, whose new size must not exceed `most_bytes`, in a way that `seed` decides.
using Mutate = std::string (*)(const std::string& input, std::size_t most_bytes,
                               std::uint32_t seed);

struct FuzzTarget {
  const char* name;                       // also the folder of its corpus
  void (*parse)(std::string_view input);  // throws Error for what it refuses
  Mutate mutate;                          // null: libFuzzer's own
};

inline void PrintTo(const FuzzTarget& target, std::ostream* out) {
  *out << target.name;
}

/// Those that are linked.
const std::vector<FuzzTarget>& fuzz_targets();

/// Runs the target; true when it took the input, false when it refused it with a sentence.
bool accepts(const FuzzTarget& target, std::string_view input);

/// The file `name` with these bytes, in a folder in memory that goes with the process. The same
/// file at every call.
std::filesystem::path scratch_file(const std::string& name, std::string_view bytes);
const std::filesystem::path& scratch_folder();

struct Registration {
  explicit Registration(const FuzzTarget& target);
};

}  // namespace shardwright::fuzz

#define SHARDWRIGHT_FUZZ_TARGET(name, parse, mutate)          \
  const ::shardwright::fuzz::Registration registered_##name { \
    { #name, parse, mutate }                                  \
  }
