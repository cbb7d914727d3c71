// SPDX-License-Identifier: Apache-2.0
// What each stage of a plan does in a step, as one schedule that a rank can walk. Of a pipeline:
// what begins the step, a section for every pass of its chunks in the order in which its host
// issues them, the sum of a tied table's gradients with the stage that has the other copy, the
// update of each chunk. Without one, one stage: the schedule of lower().
//
// A pass of the first micro-batch gathers parameters and begins the sums of gradients, the last
// one reduces them, as the strategy says. A pass begins with the receive of its input where another
// stage makes that, and ends by sending its output where another one takes it. Tensors of the
// model belong to the micro-batch of their pass, those of sharding to the step; weight gradients
// that a schedule puts off read theirs until then. Units are numbered as in the whole model, ids
// count on from stage to stage, and streams and events are those of the chunks, by name.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/pipeline.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"

namespace shardwright::sim {

/// A step: what a rank of each stage walks.
struct StepProgram {
  PipelineShape shape;
  std::vector<ChunkContent> parts;  // by model_part()
  std::vector<Schedule> stages;
};

/// The place of a chunk's unit in a model with so many layers.
std::int32_t unit_in_model(const Schedule& chunk, const ChunkContent& content, std::int64_t layers,
                           std::int32_t unit);

/// Fills `out`, reusing its memory. `programs` as in lower(). Throws Error where the schedule of
/// the pipeline does not exist for the plan's numbers.
void write_step(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
                const LayerPrograms& programs, StepProgram& out);

/// On nodes of `gpus_per_node`, as the executor walks it: the operations of layers in fp8 are those
/// of bf16, with room for the operands that it casts. Throws Error also where stages would wait for
/// one another for ever.
StepProgram executed_step(const Model& model, const Plan& plan, const Stack& stack,
                          std::int64_t gpus_per_node);

}  // namespace shardwright::sim
