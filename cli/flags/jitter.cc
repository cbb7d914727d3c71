#include "cli/flags/jitter.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/render/text/quantity.h"
#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"

namespace shardwright::cli {

Jitter jitter_of(const sim::Predictor& predictor, const sim::Prediction& prediction,
                 double kernel_spread) {
  const Schedule& schedule = predictor.schedule();
  std::vector<sim::OpCost> costs;
  sim::CostModel(predictor.profile()).cost(schedule, costs);
  sim::StragglerOptions options;
  options.kernel_spread = kernel_spread;
  const sim::StragglerResult varied = sim::simulate_stragglers(schedule, costs, options);
  const Nanoseconds alone_ns = sim::Engine().run(schedule, costs).step_ns;
  Jitter jitter;
  jitter.kernel_spread = kernel_spread;
  jitter.ranks = options.ranks;
  jitter.slowdown = static_cast<double>(varied.slowest.step_ns) / static_cast<double>(alone_ns) - 1;
  jitter.iteration_s = prediction.time.iteration_s * (1 + jitter.slowdown);
  jitter.waiting_s = static_cast<double>(varied.waiting_ns) * 1e-9;
  jitter.settled = varied.settled;
  return jitter;
}

std::string jitter_sentence(const Jitter& jitter) {
  return fmt::format(
      "With kernels that vary by {} from rank to rank and run to run, the slowest of {} ranks "
      "takes "
      "{}{} ({:+.1f} %); on average a rank waits {} in collectives for the last one to join.",
      percent(jitter.kernel_spread), jitter.ranks, jitter.settled ? "" : "at least ",
      quantity(jitter.iteration_s, "s"), 100 * jitter.slowdown, quantity(jitter.waiting_s, "s"));
}

nlohmann::ordered_json jitter_json(const Jitter& jitter) {
  return {{"kernel_spread", jitter.kernel_spread},  {"ranks", jitter.ranks},
          {"iteration_time_s", jitter.iteration_s}, {"slowdown", jitter.slowdown},
          {"waiting_s", jitter.waiting_s},          {"settled", jitter.settled}};
}

}  // namespace shardwright::cli
