// SPDX-License-Identifier: Apache-2.0
// A simulated step with its timeline, for traces and pictures.
#pragma once

#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/predict.h"

namespace shardwright::sim {

struct PredictedStep {
  Prediction prediction;
  std::vector<Schedule> stages;  // that the spans refer to; one without a pipeline
  Timeline timeline;
};

/// Throws Error as predict() does.
PredictedStep predicted_step(Predictor& predictor, const Plan& plan);

// How much memory live tensors take at each moment of a simulated step, by the device's clock.
//
// A timeline's own samples of a caching allocator follow the host, which runs ahead and allocates
// long before the device computes. Here a tensor counts from the begin of the operation that needs
// it to the end of the one that drops it, which is what a reader of a timeline looks for.

/// Ordered by time; starts with what is there before the first operation.
std::vector<MemorySample> memory_over_time(const Schedule& schedule, const Timeline& timeline);

}  // namespace shardwright::sim
