// SPDX-License-Identifier: Apache-2.0
// A prediction (sim/predict.h) from the step of a model-parallel plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/memory/stage_memory.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/predict.h"
#include "sim/program/program_cache.h"

namespace shardwright::sim {

/// What a stage of a step does and holds.
struct StageOfStep {
  StageTime time;
  std::int64_t layers = 0;
  MemoryLevel allocated;
  Bytes reserved_bytes = 0;
};

/// Of a pipeline, what each stage has allocated at its fullest: what its chunks add up to or, where
/// memory is static, all that a rank of it allocates.
std::vector<MemoryLevel> allocated_by_stage(const Model& model, const profiles::Profile& profile,
                                            const Plan& plan, ProgramCache& programs,
                                            StageMemory& stages,
                                            const std::vector<ChunkContent>& parts,
                                            StageMemory::Stages which = StageMemory::Stages::kAll);

/// The fullest stage's memory stands for all of a pipeline's.
void fill_memory_of_stages(MemoryPrediction& memory, const std::vector<StageOfStep>& stages);

/// Stages and intervals of a model-parallel plan whose times and memory are known.
void finish_parallel(Prediction& p, const Model& model, const profiles::Profile& profile,
                     const std::vector<StageOfStep>& stages, const std::string& source);

/// Of a rank, with its communicators.
Bytes runtime_bytes(const profiles::Profile& profile, const Layout& layout);

/// Whether the framework's allocator is replayed over the step; else its fragmentation is
/// estimated.
bool replays_memory(const Plan& plan, const Stack& stack);

/// Predictor::parallel_memory_bytes(). `scratch` is written anew.
Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                            ProgramCache& programs, StageMemory& stages, Schedule& scratch);

}  // namespace shardwright::sim
