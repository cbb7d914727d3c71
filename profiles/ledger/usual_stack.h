// SPDX-License-Identifier: Apache-2.0
// The software that an answer is about where nobody names any.
#pragma once

#include <string>

#include "sim/core/cluster.h"

namespace shardwright::profiles {

/// GPUs: torch-compile, whose steps on GPUs others have published. Processors: native, this
/// project's executor, which runs there and has never run on a GPU.
std::string usual_stack(const Cluster& cluster);

/// Of model-parallel plans: megatron-core, with which most published runs of
/// that kind were made.
std::string usual_model_parallel_stack();

/// Of fine-tuning: hf-trainer, Transformers' Trainer and those built on it (TRL, axolotl).
std::string usual_fine_tuning_stack();

}  // namespace shardwright::profiles
