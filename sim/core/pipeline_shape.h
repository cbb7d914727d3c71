// SPDX-License-Identifier: Apache-2.0
// A pipeline in numbers, and where its chunks lie in the model: which stage gives a chunk its input
// and takes its output follows from the schedule's facts (sim/core/pipeline_schedule.h).
//
// Read next: sim/schedules/stage_actions.h (what a stage runs when), sim/pipeline/recurrence.h
// (when that is).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/pipeline_schedule.h"

namespace shardwright {

struct PipelineShape {
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
  std::int32_t stages = 1;
  std::int32_t chunks = 1;         // of a stage
  std::int32_t micro_batches = 1;  // of the step
  std::int32_t group = 0;          // where they are grouped: that run a chunk in a row; 0: stages

  const PipelineInfo& info() const { return info_of(kind); }
  /// Micro-batches that pass a chunk.
  std::int32_t passes() const {
    return info().order == ChunkOrder::kBothWays ? micro_batches / 2 : micro_batches;
  }
  std::int32_t group_size() const { return group > 0 ? group : stages; }
  /// Stages hold chunks from all over the model, so a micro-batch goes round them several times.
  bool interleaves() const { return info().order == ChunkOrder::kLoop && chunks > 1; }
};

/// Throws Error with one sentence where the schedule does not exist for these numbers: for other
/// chunks than its own (interleaving needs several), other multiples of stages or micro-batches, or
/// a group of fewer micro-batches than stages (Megatron's rule: with a smaller one the stages wait
/// for one another for ever).
void check_shape(const PipelineShape& shape);

struct ChunkPlace {
  std::int32_t stage = 0;
  std::int32_t chunk = 0;
  bool operator==(const ChunkPlace&) const = default;
};

/// The chunk whose output is this chunk's input; nothing for the chunk with the embedding.
std::optional<ChunkPlace> previous_chunk(const PipelineShape& shape, ChunkPlace at);
/// The chunk that takes this chunk's output; nothing for the chunk with the head.
std::optional<ChunkPlace> next_chunk(const PipelineShape& shape, ChunkPlace at);
/// Position of a chunk in the model, 0 being the one with the embedding.
std::int32_t model_part(const PipelineShape& shape, ChunkPlace at);
/// What a chunk has of a list by model part.
template <typename T>
const T& of_chunk(const std::vector<T>& parts, const PipelineShape& shape, ChunkPlace at) {
  return parts[static_cast<std::size_t>(model_part(shape, at))];
}
/// Number of positions: stages * chunks, or stages where each stage holds two copies.
std::int32_t model_parts(const PipelineShape& shape);

}  // namespace shardwright
