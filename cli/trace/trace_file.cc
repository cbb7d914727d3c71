// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/trace_file.h"

#include <fmt/core.h>

#include <vector>

#include "cli/streams.h"
#include "sim/core/base/error.h"
#include "sim/core/chrome_trace.h"
#include "sim/predict.h"
#include "sim/trace/trace_comparison.h"

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
  notify(fmt::format("The trace is in {}; open it at ui.perfetto.dev.", path));
}

}  // namespace

void write_trace_of(const std::string& path, const std::string& verb, const sim::Job& inputs) {
  sim::Predictor predictor(inputs.model, inputs.profile);
  std::vector<sim::PredictedStep> steps;
  for (const Plan& plan : inputs.plans) steps.push_back(sim::predicted_step(predictor, plan));
  std::vector<TracedTimeline> timelines;
  for (const sim::PredictedStep& step : steps) {
    timelines.push_back({fmt::format("predicted, {}", name_of(step.prediction.plan.strategy)),
                         step.stages.data(), &step.timeline});
  }
  write_chrome_trace(path, timelines, notes_about(verb, inputs));
  tell(path);
}

}  // namespace shardwright::cli
