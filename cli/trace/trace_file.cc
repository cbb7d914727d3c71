// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_file.h"

#include <fmt/core.h>

#include "cli/streams.h"
#include "sim/core/check.h"
#include "sim/core/chrome_trace.h"
#include "sim/parallel/timeline_trace.h"
#include "sim/trace/step_trace.h"

namespace shardwright::cli {

namespace {

TraceNotes notes_about(const std::string& verb, const sim::Job& inputs) {
  const Plan& plan = inputs.plans.front();
  TraceNotes notes = notes_of(
      {inputs.model_name, inputs.model_config, plan, inputs.profile.cluster.gpus_per_node});
  notes.insert(notes.begin(), {"tool", "shardwright " + verb});
  notes.insert(notes.end(),
               {{"cluster", inputs.cluster_name}, {"gpus", fmt::format("{}", plan.gpus)}});
  return notes;
}

void tell(const std::string& path) {
  fmt::print(messages(), "The trace is in {}; open it at ui.perfetto.dev.\n", path);
}

}  // namespace

void write_step_trace(const std::string& path, const std::string& verb, const sim::Job& inputs,
                      const std::vector<TracedStep>& steps) {
  std::vector<TracedTimeline> timelines;
  for (const TracedStep& step : steps)
    timelines.push_back({step.title, &step.schedule, &step.timeline});
  write_chrome_trace(path, timelines, notes_about(verb, inputs));
  tell(path);
}

void write_stage_traces(const std::string& path, const std::string& verb, const sim::Job& inputs,
                        const std::vector<sim::ParallelTimeline>& timelines) {
  SHARDWRIGHT_CHECK(timelines.size() == inputs.plans.size(), "{} timelines of {} plans",
                    timelines.size(), inputs.plans.size());
  std::vector<sim::TitledTimeline> titled;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    titled.push_back(
        {fmt::format("predicted, {}", name_of(inputs.plans[i].strategy)), &timelines[i]});
  }
  sim::write_stage_trace(path, titled, notes_about(verb, inputs));
  tell(path);
}

}  // namespace shardwright::cli
