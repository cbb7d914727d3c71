// SPDX-License-Identifier: Apache-2.0
// What tests of `shardwright size` share.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace shardwright::cli::of_size {

using Flags = std::vector<std::string>;

inline shardwright::testing::ProgramResult size(const Flags& flags) {
  Flags arguments{SHARDWRIGHT_BINARY, "size"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return shardwright::testing::run_program(arguments, {"LC_ALL=C"});
}

/// Two clusters and one strategy, so that it takes a fraction of a second.
inline Flags small_size(const Flags& more = {}) {
  Flags flags{"--model",     "llama-3-8b", "--tokens",      "1e12", "--clusters", "dgx-h100,p4d",
              "--max-gpus",  "512",        "--seq-len",     "4096", "--strategy", "yafsdp",
              "--recompute", "full",       "--micro-batch", "1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

inline nlohmann::json sized(const Flags& flags, int exit_code = 0) {
  Flags with_json = flags;
  with_json.emplace_back("--json");
  const shardwright::testing::ProgramResult result = size(with_json);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return nlohmann::json::parse(result.out);
}

}  // namespace shardwright::cli::of_size
