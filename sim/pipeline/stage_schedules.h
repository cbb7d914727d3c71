// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline does in a step, as one schedule: a section for every pass of its
// chunks, in the order in which its host issues them, then one for the update of each chunk.
//
// Passes are those of the steady state, as they are timed (chunk_times.h); what the first and the
// last of a step gather and reduce beside them is not in them. A pass begins with the receive of
// its input where another stage makes that. Units are numbered as in the whole model, ids count on
// from stage to stage, and streams and events are those of the chunks, by name.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/pipeline_shape.h"
#include "sim/core/schedule.h"
#include "sim/pipeline/stages.h"

namespace shardwright::sim {

/// An operation of backward that a schedule may put off.
inline bool is_delayed(const Schedule& schedule, const Op& op) {
  return op.deferrable && schedule.streams[op.stream].role != StreamRole::kCommunication;
}

/// Of the chunks' schedules by model part, as lower_chunk() writes them.
std::vector<Schedule> stage_schedules(const Model& model, const PipelineShape& shape,
                                      const std::vector<ChunkContent>& parts,
                                      std::span<const Schedule* const> chunks, Bytes message_bytes);

/// Of activations from stage to stage, of one micro-batch and rank.
Bytes message_bytes(const Model& model, const Plan& plan);

/// Of a plan with pipeline parallelism, lowered on nodes of `gpus_per_node`.
std::vector<Schedule> stage_schedules(const Model& model, const Plan& plan, const Stack& stack,
                                      std::int64_t gpus_per_node);

}  // namespace shardwright::sim
