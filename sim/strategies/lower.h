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
#include "sim/program/stages.h"

namespace shardwright::sim {

/// Whether the stack runs the strategy; otherwise lower throws Error.
bool has_schedule(Strategy strategy, const Stack& stack);

/// Fills `out` (reusing its memory). `programs` must come from the same model, stack and plan shape
/// (micro_batch, seq_len, recompute, attention, param_dtype).
void lower(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
           const LayerPrograms& programs, Schedule& out);

/// What a step of a pipeline's chunk is made of, as lower_chunk() writes it: one section each,
/// repeated as often as the step has it, in no order of time.
enum class ChunkSection : std::uint8_t {
  kPrepare,
  kReceive,  // of a pass: the input from another stage
  kFirstForward,
  kForward,
  kFirstBackward,  // where gradients begin; empty unless the chunk is walked
  kBackward,
  kLastBackward,
  kTiedSum,  // of gradients of a table that is embedding and head; empty for any other
  kUpdate,
  // Of a chunk that is walked:
  kReceiveGradient,
  kSendOutput,
  kSendGradient
};

/// Whether passes are timed, each kind once, or walked by ranks that hand tensors on; or only their
/// memory is followed: an operation stands for all of a unit's in a pass then.
enum class ChunkUse : std::uint8_t { kTimed, kWalked, kMemory };

/// Fills `out` with the step of one chunk: of the whole model as lower() does, of a pipeline in
/// sections. Its units are numbered from 0, the place of the embedding, which only the first chunk
/// has; its optimizer updates the chunk's parameters.
void lower_chunk(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
                 const LayerPrograms& programs, const ChunkContent& content, Schedule& out,
                 ChunkUse use = ChunkUse::kTimed);

/// Of a chunk, parameters, gradients and optimizer state that outlive operations: at most what it
/// holds at any moment, at a small part of lowering it.
Bytes held_bytes(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
                 const ChunkContent& content, Schedule& scratch);

}  // namespace shardwright::sim
