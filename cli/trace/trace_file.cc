// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_file.h"

#include <fmt/core.h>

#include <vector>

#include "cli/streams.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/error.h"
#include "sim/pipeline/timeline.h"
#include "sim/pipeline/timeline_trace.h"
#include "sim/predict.h"
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

/// One simulated step: the schedule that the spans refer to, and the spans.
struct TracedStep {
  std::string title;  // "predicted, yafsdp"
  Schedule schedule;
  Timeline timeline;
};

void write_ranks(const std::string& path, const TraceNotes& notes, const sim::Job& inputs) {
  sim::Predictor predictor(inputs.model, inputs.profile);
  std::vector<TracedStep> steps;
  for (const Plan& plan : inputs.plans) {
    TracedStep& step = steps.emplace_back();
    step.title = fmt::format("predicted, {}", name_of(plan.strategy));
    predictor.predict(plan, {.timeline = &step.timeline});
    step.schedule = *predictor.schedule();
  }
  std::vector<TracedTimeline> timelines;
  for (const TracedStep& step : steps)
    timelines.push_back({step.title, &step.schedule, &step.timeline});
  write_chrome_trace(path, timelines, notes);
}

void write_stages(const std::string& path, const TraceNotes& notes, const sim::Job& inputs) {
  std::vector<sim::ParallelTimeline> timelines;
  for (const Plan& plan : inputs.plans)
    timelines.push_back(sim::parallel_timeline(inputs.model, inputs.profile, plan));
  std::vector<sim::TitledTimeline> titled;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    titled.push_back(
        {fmt::format("predicted, {}", name_of(inputs.plans[i].strategy)), &timelines[i]});
  }
  sim::write_stage_trace(path, titled, notes);
}

}  // namespace

void write_trace_of(const std::string& path, const std::string& verb, const sim::Job& inputs) {
  const TraceNotes notes = notes_about(verb, inputs);
  // Strategies differ, the pipeline is one.
  if (inputs.plans.front().parallel.pp > 1) {
    write_stages(path, notes, inputs);
  } else {
    write_ranks(path, notes, inputs);
  }
  tell(path);
}

}  // namespace shardwright::cli
