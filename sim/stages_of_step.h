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

/// What the fullest stage takes of a GPU, runtime included: MemoryPrediction::total_bytes without
/// the rest of the prediction.
Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan);

}  // namespace shardwright::sim
