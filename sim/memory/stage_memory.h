// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline keeps in memory at its fullest.
//
// Parameters, accumulated gradients and optimizer state by the strategy; activations of every pass
// in flight, by the stage's place in the schedule, and logits, as tensors of the units' programs
// live and die (unit_activations.h); buffers of transfers, gathers and communicators.
#pragma once

#include <array>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/layout.h"
#include "sim/core/model_units.h"
#include "sim/core/schedule.h"
#include "sim/memory/unit_activations.h"
#include "sim/pipeline/stages.h"

namespace shardwright::sim {

/// Parameters of a rank, by how they are reduced.
struct ChunkParameters {
  double layers = 0, embedding = 0, head = 0;
  double experts = 0;  // routed ones, summed over ranks that hold the same
  double dense() const { return layers + embedding + head; }
  double total() const { return dense() + experts; }
};
ChunkParameters chunk_parameters(const Model& model, const ModelUnits& units,
                                 const ChunkContent& chunk);

struct StageMemory {
  double allocated_bytes = 0, reserved_bytes = 0;
  std::array<double, kMemoryCategories> breakdown_bytes{};

  double& of(MemoryCategory category) {
    return breakdown_bytes[static_cast<std::size_t>(category)];
  }
};

/// By stage.
std::vector<StageMemory> stage_memory(const Model& model, const Plan& plan,
                                      const profiles::Profile& profile, const Layout& layout,
                                      const std::vector<ChunkContent>& parts,
                                      const UnitActivations& activations);

/// Activations of a chunk and micro-batch that are offloaded to the host.
double offloaded_bytes(const Model& model, const Plan& plan, const Stack& stack,
                       const ChunkContent& chunk);

/// Communicators that a rank is part of.
int communicators(const Layout& layout);

}  // namespace shardwright::sim
