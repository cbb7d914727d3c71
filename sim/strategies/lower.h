// SPDX-License-Identifier: Apache-2.0
// Lowers (model, plan, stack) into the Schedule of one optimizer step: the units' own operations
// from layer_program.h, wrapped by the strategy, in host order: prologue, micro-batches (forward
// over units 0..L+1, backward over L+1..0), then gradient norm, clip and optimizer.
#pragma once

#include <cstdint>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"

namespace shardwright::sim {

/// Whether the stack runs the strategy; otherwise lower throws Error.
bool has_schedule(Strategy strategy, const Stack& stack);
/// Whether lower() writes the plan's step. Not yet: steps of pipelines, activations on the host,
/// and software that always divides the model.
bool has_schedule(const Plan& plan, const Stack& stack);

/// Fills `out` (reusing its memory). `programs` must come from the same model, stack and plan shape
/// (micro_batch, seq_len, recompute, attention, param_dtype).
void lower(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
           const LayerPrograms& programs, Schedule& out);

/// On nodes of `gpus_per_node`, as the executor walks it: the operations of layers in fp8 are those
/// of bf16, with room for the operands that it casts.
Schedule lower(const Model& model, const Plan& plan, const Stack& stack,
               std::int64_t gpus_per_node);

}  // namespace shardwright::sim
