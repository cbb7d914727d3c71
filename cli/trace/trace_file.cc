// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_file.h"

#include <fmt/core.h>

#include "cli/streams.h"
#include "sim/core/chrome_trace.h"
#include "sim/trace/step_trace.h"

namespace shardwright::cli {

void write_step_trace(const std::string& path, const std::string& verb, const sim::Job& inputs,
                      const std::vector<TracedStep>& steps) {
  std::vector<TracedTimeline> timelines;
  for (const TracedStep& step : steps)
    timelines.push_back({step.title, &step.schedule, &step.timeline});
  const Plan& plan = inputs.plans.front();
  TraceNotes notes = notes_of(
      {inputs.model_name, inputs.model_config, plan, inputs.profile.cluster.gpus_per_node});
  notes.insert(notes.begin(), {"tool", "shardwright " + verb});
  notes.insert(notes.end(),
               {{"cluster", inputs.cluster_name}, {"gpus", fmt::format("{}", plan.gpus)}});
  write_chrome_trace(path, timelines, notes);
  fmt::print(messages(), "The trace is in {}; open it at ui.perfetto.dev.\n", path);
}

}  // namespace shardwright::cli
