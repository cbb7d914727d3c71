// SPDX-License-Identifier: Apache-2.0
// A plan in a few words, for tables and sentences: "hsdp of 32, 2 x 4, 12 layers full".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/profile.h"
#include "sim/core/cluster.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// Strategy, batch and checkpointing, then whatever is not as usual.
std::string plan_words(const Plan& plan);

/// "12 layers full", "nothing recomputed".
std::string checkpoint_words(const Plan& plan);

/// "a part of one node: 7 of its 8 GPUs, with nothing beside them"; empty for one GPU, whole nodes
/// and racks.
std::string part_of_node_words(const Cluster& cluster, std::int64_t gpus);

/// What the peak is of that MFU and HFU refer to: "dense bf16", of a processor "fp32".
std::string peak_type_words(const Gpu& gpu, const Plan& plan);

// What a person should know of a job before reading its answer: what its model's configuration says
// and the answer does not contain.

/// One sentence each; none for most models. `longest` is the longest sequence that is asked about;
/// 0: none is.
std::vector<std::string> model_notes(const Model& model, std::int64_t longest);

/// Each on stderr as "note: ...".
void tell_notes(const Terminal& err, const std::vector<std::string>& notes);

// Which software an answer is about, and what stands behind it: the first thing to read.

/// "The steps are those of torch-compile, checked against 6 published runs on h100-80g; never on
/// b200."
std::string software_sentence(const profiles::Profile& profile);

/// Whose software a strategy is, as "FSDP2 on torch-compile", or "megatron-core".
std::string strategy_software(const Plan& plan, const Stack& stack);

/// Where strategies of Megatron are priced with the kernels of another framework; else empty.
std::string foreign_strategy_sentence(const std::vector<sim::Prediction>& predictions,
                                      const Stack& stack);

}  // namespace shardwright::cli
