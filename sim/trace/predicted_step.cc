// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/predicted_step.h"

#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

PredictedStep predicted_step(Predictor& predictor, const Plan& plan) {
  PredictedStep step;
  PredictOptions options;
  options.timeline = &step.timeline;
  step.prediction = predictor.predict(plan, options);
  step.stages = predictor.program().stages;
  return step;
}

}  // namespace shardwright::sim
