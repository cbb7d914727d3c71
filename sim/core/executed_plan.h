// SPDX-License-Identifier: Apache-2.0
// Which models and plans the executor runs: every sentence with which it refuses one is here, for
// `run`, for who plans without it, and for who searches what it takes.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright {

/// The framework that `run` executes plans with.
inline constexpr std::string_view kOwnStack = "native";

/// Why `run` does not train a model with a plan, of which every knob is decided, as a sentence with
/// what it would take; empty: it does. Of a configuration with dropout it is the one without.
std::string why_not_run(const Model& model, const Plan& plan);
/// Throws InvalidPlan with that sentence.
void check_run(const Plan& plan, const Model& model);

/// The plan with layers that multiply in bf16 where it has fp8: both have one schedule in the
/// executor, which casts operands just before it multiplies.
Plan with_products_in_bf16(Plan plan);

// Families of models that the executor trains (exec/layout.h), for who plans without it.

inline constexpr std::array<std::string_view, 21> kTrainedFamilies = {
    "cwm",         "ernie4_5", "gemma",  "gemma2",   "glm",       "glm4",       "gpt2",
    "gpt_bigcode", "gpt_neox", "helium", "llama",    "ministral", "mistral",    "mpt",
    "phi3",        "qwen2",    "qwen3",  "seed_oss", "stablelm",  "starcoder2", "vaultgemma"};

constexpr bool is_trained_family(std::string_view family) {
  return std::find(kTrainedFamilies.begin(), kTrainedFamilies.end(), family) !=
         kTrainedFamilies.end();
}

}  // namespace shardwright
