// SPDX-License-Identifier: Apache-2.0
// What training a whole model on one device would take: the rule of thumb that people carry in
// their heads beside the bytes that this program counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/core/model.h"
#include "sim/core/units.h"

namespace shardwright::cli {

/// Bytes a parameter: 2 of weights, 2 of gradients, 12 of fp32 weights and Adam's moments, and 8
/// for activations and what else is on a GPU.
inline constexpr double kRuleOfThumbBytes = 24;

/// One unsharded copy, bf16 with fp32 weights and moments, native stack, one sequence.
struct TrainingMemory {
  double rule_of_thumb_bytes = 0;
  Bytes state_bytes = 0;            // weights, their fp32 copy, gradients and moments
  Bytes peak_bytes = 0;             // with every activation kept
  Bytes recomputed_peak_bytes = 0;  // with every layer recomputed
};

/// None for a model that is not predicted on one device.
std::optional<TrainingMemory> training_memory(const Model& model, std::int64_t seq_len);

std::string training_memory_table(const TrainingMemory& memory, std::int64_t seq_len,
                                  std::int64_t parameters, const Terminal& out);

}  // namespace shardwright::cli
