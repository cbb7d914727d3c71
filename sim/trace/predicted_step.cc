// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/predicted_step.h"

namespace shardwright::sim {

PredictedStep predicted_step(Predictor& predictor, const Plan& plan) {
  PredictedStep step;
  PredictOptions options;
  options.timeline = &step.timeline;
  options.stage_schedules = &step.stages;
  step.prediction = predictor.predict(plan, options);
  if (predictor.schedule() != nullptr) step.stages = {*predictor.schedule()};
  return step;
}

}  // namespace shardwright::sim
