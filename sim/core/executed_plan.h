// SPDX-License-Identifier: Apache-2.0
// Which plans the executor runs: data parallelism with tensor and sequence parallelism and
// pipelines.
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

/// What of a plan the executor does not run, as "lora is 8"; empty: nothing.
std::string beyond_execution(const Plan& plan);

/// Throws Error that ends in `expected` where a plan asks for what the executor does not run.
void check_executed(const Plan& plan, std::string_view expected);

/// Why `run` does not train a model with a plan, of which every knob is decided, as a sentence;
/// empty: it does. The precision that it trains in first, then the model and the rest.
std::string why_not_run(const Model& model, const Plan& plan);
/// Throws Error with what that finds and what is expected instead.
void check_run(const Plan& plan, const Model& model);

// What of a plan's precision the executor trains: known before anything runs, so that predictions
// can say so, too.

struct Model;

/// The plan with layers that multiply in bf16 where it has fp8: both have one schedule in the
/// executor, which casts operands just before it multiplies.
Plan with_products_in_bf16(Plan plan);

/// Why the executor does not train so, as a sentence with what it would take; empty: it does.
std::string untrained_precision(const Model& model, const Plan& plan);

/// Throws Error with that sentence.
void check_trained_precision(const Model& model, const Plan& plan);

// Families of models that the executor trains (exec/family.h), for who plans without it.

inline constexpr std::array<std::string_view, 21> kTrainedFamilies = {
    "cwm",         "ernie4_5", "gemma",  "gemma2",   "glm",       "glm4",       "gpt2",
    "gpt_bigcode", "gpt_neox", "helium", "llama",    "ministral", "mistral",    "mpt",
    "phi3",        "qwen2",    "qwen3",  "seed_oss", "stablelm",  "starcoder2", "vaultgemma"};

constexpr bool is_trained_family(std::string_view family) {
  return std::find(kTrainedFamilies.begin(), kTrainedFamilies.end(), family) !=
         kTrainedFamilies.end();
}

}  // namespace shardwright
