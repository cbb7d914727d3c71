#include "cli/trace_file.h"

#include <fmt/core.h>

#include "sim/core/chrome_trace.h"

namespace shardwright::cli {

void write_step_trace(const std::string& path, const std::string& verb, const PlanInputs& inputs,
                      const std::vector<TracedStep>& steps) {
  std::vector<TracedTimeline> timelines;
  for (const TracedStep& step : steps)
    timelines.push_back({step.title, &step.schedule, &step.timeline});
  const Plan& plan = inputs.plans.front();
  write_chrome_trace(path, timelines,
                     {{"tool", "shardwright " + verb},
                      {"model", inputs.model_name},
                      {"cluster", inputs.cluster_name},
                      {"gpus", fmt::format("{}", plan.gpus)},
                      {"stack", plan.stack}});
  fmt::print(stderr, "The trace is in {}; open it at ui.perfetto.dev.\n", path);
}

}  // namespace shardwright::cli
