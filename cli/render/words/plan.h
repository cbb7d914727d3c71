// SPDX-License-Identifier: Apache-2.0
// A plan in a few words, for tables and sentences: "hsdp of 32, 2 x 4, 12 layers full".
#pragma once

#include <cstdint>
#include <string>

#include "sim/core/cluster.h"
#include "sim/core/plan.h"

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

}  // namespace shardwright::cli
