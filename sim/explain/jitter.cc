// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/jitter.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/core/base/numbers.h"
#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

namespace {

Jitter jitter_of_stages(const Predictor& predictor, const Plan& plan, double kernel_spread,
                        std::optional<double> rank_spread) {
  ProgramCache programs(predictor.model(), predictor.profile().stack,
                        predictor.profile().cluster.gpu);
  PipelineSimulator simulator(predictor.model(), predictor.profile(), programs);
  JointOptions options = joint_options(plan);
  options.kernel_spread = kernel_spread;
  options.rank_spread = rank_spread;
  JointStages joint(options);
  const double varied_s = simulator.run_varied(plan, joint).step_s;
  Jitter jitter;
  jitter.ranks = joint.ranks();
  jitter.slowdown = varied_s / simulator.run(plan).step_s - 1;
  // Nothing hides the collectives of layers, nor those after the last pass.
  jitter.waiting_s = jitter.exposed_s = seconds_of(joint.waiting_ns());
  // Slower stages may leave fewer gaps than alike ones.
  jitter.bubble_s = seconds_of(std::max(Nanoseconds{0}, joint.bubble_longer_ns()));
  return jitter;
}

/// As many replicas as fill eight ranks, two at least where there are.
StragglerOptions straggler_options(const Predictor& predictor, const Plan& plan) {
  constexpr int kRanks = 8;
  const JointOptions joint = joint_options(plan);
  StragglerOptions options;
  options.pass_ranks = joint.pass_ranks;
  options.ranks =
      joint.pass_ranks * std::min(joint.replicas, std::max(2, kRanks / joint.pass_ranks));
  options.engine = engine_options(predictor.profile().cluster.gpu);
  return options;
}

Nanoseconds total(const std::array<Nanoseconds, kCommGroups>& by_group) {
  return std::accumulate(by_group.begin(), by_group.end(), Nanoseconds{0});
}

Jitter jitter_of_rank(const Predictor& predictor, const Plan& plan, double kernel_spread,
                      std::optional<double> rank_spread) {
  const Schedule& schedule = predictor.program().stages.front();
  std::vector<OpCost> costs;
  CostModel(predictor.profile()).cost(schedule, costs);
  StragglerOptions options = straggler_options(predictor, plan);
  options.kernel_spread = kernel_spread;
  options.rank_spread = rank_spread;
  const StragglerResult varied = simulate_stragglers(schedule, costs, options);
  const StepTime alone = Engine().run(schedule, costs, options.engine);
  Jitter jitter;
  jitter.ranks = options.ranks;
  jitter.slowdown =
      static_cast<double>(varied.slowest.step_ns) / static_cast<double>(alone.step_ns) - 1;
  jitter.waiting_s = seconds_of(varied.waiting_ns);
  // Slower kernels may hide more than waiting adds.
  jitter.exposed_s =
      seconds_of(std::max(Nanoseconds{0}, total(varied.exposed_ns) - total(alone.exposed_ns)));
  jitter.settled = varied.settled;
  return jitter;
}

}  // namespace

Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread,
                 std::optional<double> rank_spread) {
  Jitter jitter = prediction.plan.parallel.pp > 1
                      ? jitter_of_stages(predictor, prediction.plan, kernel_spread, rank_spread)
                      : jitter_of_rank(predictor, prediction.plan, kernel_spread, rank_spread);
  jitter.kernel_spread = kernel_spread;
  jitter.iteration_s = prediction.time.iteration_s * (1 + jitter.slowdown);
  return jitter;
}

}  // namespace shardwright::sim
