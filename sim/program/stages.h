// SPDX-License-Identifier: Apache-2.0
// Which part of the model each chunk of a pipeline holds.
//
// Equal numbers of layers where they divide; where layers, embedding and head together do, those
// two count as a layer each (Megatron's account_for_embedding_in_pipeline_split and
// account_for_loss_in_pipeline_split: 126 layers of Llama 3.1 405B in 128 places); else the last
// chunk, which has the head, gets what equal others leave (Megatron-Bridge's layouts of
// DeepSeek-V3: 61 layers in 16 chunks are 15 of 4 and one of 1), or, where they leave none, the
// first chunks get one layer more. Software that cuts a list of modules into equal parts
// (StageSoftware in sim/core/stack.h) counts embedding, last norm and head as layers. A
// layout string says it exactly: E embedding, t layer, m multi-token prediction, L head and loss,
// | end of a chunk, (...)*n or x*n repetition.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/pipeline.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

struct ChunkContent {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  std::int64_t recomputed = 0;     // of them
  std::int64_t expert_layers = 0;  // of the layers
  std::uint64_t kinds = 0;  // of the layers in their order, where they have kinds: as a number
  std::int64_t extra_predictions = 0;
  bool embedding = false, head = false;
  /// Of all of the model: no other micro-batch is in flight between a micro-batch's passes.
  bool whole = false;
  bool operator==(const ChunkContent&) const = default;
};

/// They differ in nothing but where they lie in the model.
bool alike(ChunkContent chunk, const ChunkContent& other);

/// Fills what follows from the chunk's layers.
void count_kinds(const Model& model, ChunkContent& chunk);

/// One chunk of everything.
ChunkContent whole_model(const Model& model, const Plan& plan);

PipelineShape pipeline_shape(const Plan& plan);
/// Of its micro-batches, as many as show all that a stage does: where the schedule has a steady
/// state, as many passes are in flight with fewer ones, once warm-up is over.
std::int64_t telling_micro_batches(const Plan& plan);
/// The plan as a chunk sees it: it accumulates the micro-batches that pass it.
Plan plan_of_chunk(const Plan& plan, const PipelineShape& shape);

/// By model part (sim/core/pipeline.h). Throws Error where the layout does not fit the model.
std::vector<ChunkContent> partition_layers(const Model& model, const Plan& plan,
                                           const Stack& stack);

/// How many layers each stage has, of chunks by model part.
std::vector<std::int64_t> stage_layers(const PipelineShape& shape,
                                       const std::vector<ChunkContent>& parts);

}  // namespace shardwright::sim
