// SPDX-License-Identifier: Apache-2.0
// Families of models that the executor trains (exec/family.h), for who plans without it.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace shardwright {

inline constexpr std::array<std::string_view, 21> kTrainedFamilies = {
    "cwm",         "ernie4_5", "gemma",  "gemma2",   "glm",       "glm4",       "gpt2",
    "gpt_bigcode", "gpt_neox", "helium", "llama",    "ministral", "mistral",    "mpt",
    "phi3",        "qwen2",    "qwen3",  "seed_oss", "stablelm",  "starcoder2", "vaultgemma"};

constexpr bool is_trained_family(std::string_view family) {
  return std::find(kTrainedFamilies.begin(), kTrainedFamilies.end(), family) !=
         kTrainedFamilies.end();
}

}  // namespace shardwright
