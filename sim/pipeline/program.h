// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline does in one step, in the order in which its host issues it.
//
// A program is a list of (direction, chunk, micro-batch). Stages hold one or more chunks of the
// model; where a chunk's input comes from and its output goes is a property of the schedule, not of
// the program: neighbour() says it. Sources, in the order of PipelineKind: GPipe (Huang et al.
// 2019, "all forward, all backward"); 1F1B and interleaved (Megatron-LM,
// core/pipeline_parallel/schedules.py); ZB1P, which is ZB-H1, and ZBV (Qi et al. 2023 and 2024; ZBV
// as PyTorch's ScheduleZBVZeroBubble writes it); DualPipe (deepseek-ai/DualPipe, dualpipe.py).
//
// Durations are no part of this: sim/pipeline/recurrence.h puts a program and durations together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/parallelism.h"

namespace shardwright::sim {

using shardwright::kPipelineKinds;
using shardwright::PipelineKind;

struct PipelineShape {
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
  std::int32_t stages = 1;
  std::int32_t chunks = 1;         // a stage's; 2 for zbv and dualpipe
  std::int32_t micro_batches = 1;  // of the step; dualpipe sends half of them each way
  std::int32_t group = 0;  // interleaved: micro-batches that run a chunk in a row; 0: stages
};

/// Throws Error with one sentence where the schedule does not exist for these numbers: interleaving
/// needs chunks > 1, a group of at least `stages` micro-batches and a last group as large
/// (Megatron's rule: with a smaller one the stages wait for one another for ever); zbv and dualpipe
/// two chunks; dualpipe an even number of stages and an even number of micro-batches, at least two
/// a stage.
void check_shape(const PipelineShape& shape);

enum class Direction : std::uint8_t {
  kForward,
  kBackward,       // both gradients
  kInputGradient,  // what the stage before waits for
  kWeightGradient
};

struct PipelineAction {
  Direction direction = Direction::kForward;
  /// This action and the next one run as one block in which communication of one hides behind
  /// computation of the other (DualPipe).
  bool paired = false;
  std::int16_t chunk = 0;
  std::int32_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

using StageProgram = std::vector<PipelineAction>;

/// The program of `stage`. `shape` must be valid.
StageProgram stage_program(const PipelineShape& shape, std::int32_t stage);

struct ChunkPlace {
  std::int32_t stage = 0;
  std::int32_t chunk = 0;
  bool operator==(const ChunkPlace&) const = default;
};

/// The chunk whose output is this chunk's input; nothing for the chunk with the embedding.
std::optional<ChunkPlace> previous_chunk(const PipelineShape& shape, ChunkPlace at);
/// The chunk that takes this chunk's output; nothing for the chunk with the head.
std::optional<ChunkPlace> next_chunk(const PipelineShape& shape, ChunkPlace at);
/// Position of a chunk in the model, 0 being the one with the embedding. Both directions of
/// DualPipe hold the whole model.
std::int32_t model_part(const PipelineShape& shape, ChunkPlace at);
/// What a chunk has of a list by model part.
template <typename T>
const T& of_chunk(const std::vector<T>& parts, const PipelineShape& shape, ChunkPlace at) {
  return parts[static_cast<std::size_t>(model_part(shape, at))];
}
/// Number of positions: stages * chunks, or stages for DualPipe.
std::int32_t model_parts(const PipelineShape& shape);

/// The most forward passes of chunks whose activations a stage holds at once. Activations of a pass
/// live until its weight gradients are done.
std::int32_t peak_in_flight(const StageProgram& program);

}  // namespace shardwright::sim
