// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/jitter.h"

#include <vector>

#include "sim/core/error.h"
#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"

namespace shardwright::sim {

Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread) {
  if (predictor.schedule() == nullptr) {
    throw Error(
        "--jitter varies the kernels of one rank's schedule, which model-parallel plans do not "
        "have, expected a plan of data parallelism in bf16");
  }
  const Schedule& schedule = *predictor.schedule();
  std::vector<OpCost> costs;
  CostModel(predictor.profile()).cost(schedule, costs);
  StragglerOptions options;
  options.kernel_spread = kernel_spread;
  const StragglerResult varied = simulate_stragglers(schedule, costs, options);
  const Nanoseconds alone_ns = Engine().run(schedule, costs).step_ns;
  Jitter jitter;
  jitter.kernel_spread = kernel_spread;
  jitter.ranks = options.ranks;
  jitter.slowdown = static_cast<double>(varied.slowest.step_ns) / static_cast<double>(alone_ns) - 1;
  jitter.iteration_s = prediction.time.iteration_s * (1 + jitter.slowdown);
  jitter.waiting_s = static_cast<double>(varied.waiting_ns) * 1e-9;
  jitter.settled = varied.settled;
  return jitter;
}

}  // namespace shardwright::sim
