// SPDX-License-Identifier: Apache-2.0
// A simulated step with its timeline, for traces and pictures.
#pragma once

#include <vector>

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

}  // namespace shardwright::sim
