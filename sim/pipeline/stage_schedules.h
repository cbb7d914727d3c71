// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline does in a step, as one schedule that a rank can walk: what begins
// the step, a section for every pass of its chunks in the order in which its host issues them, the
// sum of a tied table's gradients with the stage that has the other copy, the update of each chunk.
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
#include "sim/core/pipeline_shape.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"

namespace shardwright::sim {

/// The place of a chunk's unit in a model with so many layers.
std::int32_t unit_in_model(const Schedule& chunk, const ChunkContent& content, std::int64_t layers,
                           std::int32_t unit);

/// Of a plan with pipeline parallelism, by stage.
std::vector<Schedule> stage_schedules(const Model& model, const Plan& plan, const Stack& stack,
                                      const Cluster& cluster, const LayerPrograms& programs);

/// The same on nodes of `gpus_per_node`.
std::vector<Schedule> stage_schedules(const Model& model, const Plan& plan, const Stack& stack,
                                      std::int64_t gpus_per_node);

/// Of any plan: of each stage, one without pipeline parallelism, as the executor walks them.
std::vector<Schedule> step_schedules(const Model& model, const Plan& plan, const Stack& stack,
                                     std::int64_t gpus_per_node);

}  // namespace shardwright::sim
