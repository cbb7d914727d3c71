// SPDX-License-Identifier: Apache-2.0
// Predicted memory as a snapshot that PyTorch's viewer opens (pytorch.org/memory_viz).
//
// The tensors of a step live and die as the schedule says; PyTorch's allocator, simulated, gives
// them addresses. Every event carries the tensor and the operation it is for where a real snapshot
// carries a stack of calls. One step is drawn, with at most two micro-batches.
#pragma once

#include <string>

#include "sim/job.h"

namespace shardwright::cli {

/// A pickle. Throws Error for a model-parallel plan, whose schedules are not of tensors.
std::string predicted_snapshot(const sim::Job& job, const Plan& plan);

}  // namespace shardwright::cli
