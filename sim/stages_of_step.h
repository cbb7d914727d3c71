// SPDX-License-Identifier: Apache-2.0
// A prediction (sim/predict.h) from the step of a model-parallel plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/memory/stage_memory.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/predict.h"

namespace shardwright::sim {

/// What each stage of a step does and holds.
struct StagesOfStep {
  std::vector<StageTime> stages;
  std::vector<std::int64_t> layers;
  std::vector<StageMemory> memory;
};
/// Memory and intervals of a model-parallel plan whose times are known.
void finish_parallel(Prediction& p, const Model& model, const profiles::Profile& profile,
                     const StagesOfStep& stages, const std::string& source);

/// Of a rank, with its communicators.
Bytes runtime_bytes(const profiles::Profile& profile, const Layout& layout);

/// Whether every array of such a plan is in its schedule, so that its framework's allocator is
/// replayed over it; else what outlives operations follows formulas and fragmentation is estimated.
bool replays_memory(const Model& model, const Plan& plan, const Stack& stack);

/// Predictor::parallel_memory_bytes().
Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                            const UnitActivations& activations);

}  // namespace shardwright::sim
