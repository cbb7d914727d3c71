// SPDX-License-Identifier: Apache-2.0
// What tests of `shardwright size` share.
#pragma once

#include "tests/cli/program.h"

namespace shardwright::cli::of_size {

inline shardwright::testing::ProgramResult size(const Words& flags) {
  Words arguments = joined({SHARDWRIGHT_BINARY, "size"}, flags);
  return shardwright::testing::run_program(arguments, {"LC_ALL=C"});
}

/// Two clusters and one strategy, so that it takes a fraction of a second.
inline Words small_size(const Words& more = {}) {
  return joined({"--model", "llama-3-8b", "--tokens", "1e12", "--clusters", "dgx-h100,p4d",
                 "--max-gpus", "512", "--seq-len", "4096", "--strategy", "yafsdp", "--recompute",
                 "full", "--micro-batch", "1"},
                more);
}

inline nlohmann::json sized(const Words& flags, int exit_code = 0) {
  Words with_json = joined(flags, {"--json"});
  const shardwright::testing::ProgramResult result = size(with_json);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return nlohmann::json::parse(result.out);
}

}  // namespace shardwright::cli::of_size
