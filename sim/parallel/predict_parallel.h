// SPDX-License-Identifier: Apache-2.0
// A prediction (sim/predict.h) from the step of a model-parallel plan.
#pragma once

#include <string>

#include "sim/parallel/parallel_step.h"
#include "sim/predict.h"

namespace shardwright::sim {

/// Whether the plan goes this engine rather than that of data-parallel steps.
bool goes_parallel(const Plan& plan, const Stack& stack);

/// What the fullest stage takes of a GPU, runtime included: MemoryPrediction::total_bytes without
/// the rest of the prediction.
Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan);

/// `source` as in PredictOptions. Throws Error when the plan contradicts the model, the cluster or
/// the stack.
Prediction predict_parallel(ParallelEngine& engine, const Model& model,
                            const profiles::Profile& profile, const Plan& plan,
                            const std::string& source);

}  // namespace shardwright::sim
