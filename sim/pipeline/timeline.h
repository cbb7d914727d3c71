// SPDX-License-Identifier: Apache-2.0
// When every stage of a model-parallel plan does what, for traces and pictures.
//
// The step is walked again with every micro-batch kept (pipeline_step.h). Slices of a stage follow
// one another without a gap or an overlap from 0 to the end of the step: passes of chunks, blocking
// transfers, the tail of the step, and between them bubbles, in which the stage waits for others. A
// pair of passes that runs as one block (DualPipe) is two slices of equal times. Reductions of
// gradients and transfers that overlap run beside and stand in lists of their own.
//
// One micro-batch of each stage is opened up: the operations of one chunk's passes on their
// streams, as the engine ran them.
#pragma once

#include <string_view>
#include <vector>

#include "sim/memory/stage_memory.h"
#include "sim/pipeline/pipeline_step.h"

namespace shardwright::sim {

enum class SliceKind : std::uint8_t {
  kForward,
  kBackward,
  kInputGradient,
  kWeightGradient,
  kDeferred,  // weight gradients of the head that wait for the flush
  kBubble,
  kTransfer,
  kReduction,  // the stage waits for it
  kOptimizer,
  kGather,  // of parameters, as far as nothing hides it
  kHost,
  kVariation  // of nodes
};
/// "forward", "weight gradient", "bubble", ...
std::string_view name_of(SliceKind kind);

/// The word of a group: "tensor", "context", "expert", "pipeline", "data".
std::string_view name_of(CommGroup group);

struct StageSlice {
  SliceKind kind = SliceKind::kBubble;
  std::int32_t chunk = -1, micro_batch = -1;  // of passes
  Nanoseconds begin_ns = 0, end_ns = 0;
};

/// Of activations, or of their gradients, beside what the stages compute.
struct Transfer {
  std::int32_t from = 0, to = 0;  // stages
  bool forward = true;
  std::int32_t chunk = 0, micro_batch = 0;  // of the pass that made it
  Nanoseconds begin_ns = 0, end_ns = 0;
};

struct OperationSlice {
  Op op;
  Phase phase = Phase::kForward;
  std::int64_t layer = -1;  // of the model; -1: embedding, head, prediction
  bool communication = false;
  Nanoseconds begin_ns = 0, end_ns = 0;
};

struct StageTimeline {
  std::vector<StageSlice> slices;
  std::vector<StageSlice> reductions;
  std::int32_t opened_chunk = 0, opened_micro_batch = 0;
  std::vector<OperationSlice> operations;
};

struct ParallelTimeline {
  PipelineShape shape;
  std::vector<StageTimeline> stages;
  std::vector<Transfer> transfers;
  std::vector<ChunkContent> parts;  // by model_part()
  std::vector<StageMemory> memory;  // by stage
  Nanoseconds pipeline_ns = 0;      // until the last backward pass
  Nanoseconds step_ns = 0;
  double bubble = 0;  // share of the stages' time until then
};

/// Of a plan with pipeline parallelism. Throws Error as predict() does.
ParallelTimeline parallel_timeline(const Model& model, const profiles::Profile& profile,
                                   const Plan& plan);

}  // namespace shardwright::sim
