// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/jitter.h"

#include <vector>

#include "sim/core/base/seconds.h"
#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"
#include "sim/pipeline/pipeline_step.h"

namespace shardwright::sim {

namespace {

Jitter jitter_of_stages(const Predictor& predictor, const Plan& plan, double kernel_spread) {
  ProgramCache programs(predictor.model(), predictor.profile().stack,
                        predictor.profile().cluster.gpu);
  PipelineSimulator simulator(predictor.model(), predictor.profile(), programs);
  JointOptions options = joint_options(plan);
  options.kernel_spread = kernel_spread;
  JointStages joint(options);
  const double varied_s = simulator.run_varied(plan, joint).step_s;
  Jitter jitter;
  jitter.ranks = joint.ranks();
  jitter.slowdown = varied_s / simulator.run(plan).step_s - 1;
  jitter.waiting_s = seconds_of(joint.waiting_ns());
  jitter.bubble_s = seconds_of(joint.bubble_longer_ns());
  return jitter;
}

Jitter jitter_of_rank(const Predictor& predictor, double kernel_spread) {
  const Schedule& schedule = *predictor.schedule();
  std::vector<OpCost> costs;
  CostModel(predictor.profile()).cost(schedule, costs);
  StragglerOptions options;
  options.kernel_spread = kernel_spread;
  const StragglerResult varied = simulate_stragglers(schedule, costs, options);
  const Nanoseconds alone_ns = Engine().run(schedule, costs).step_ns;
  Jitter jitter;
  jitter.ranks = options.ranks;
  jitter.slowdown = static_cast<double>(varied.slowest.step_ns) / static_cast<double>(alone_ns) - 1;
  jitter.waiting_s = seconds_of(varied.waiting_ns);
  jitter.settled = varied.settled;
  return jitter;
}

}  // namespace

Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread) {
  Jitter jitter = prediction.plan.parallel.pp > 1
                      ? jitter_of_stages(predictor, prediction.plan, kernel_spread)
                      : jitter_of_rank(predictor, kernel_spread);
  jitter.kernel_spread = kernel_spread;
  jitter.iteration_s = prediction.time.iteration_s * (1 + jitter.slowdown);
  return jitter;
}

}  // namespace shardwright::sim
