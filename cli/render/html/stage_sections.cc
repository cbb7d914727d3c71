// SPDX-License-Identifier: Apache-2.0
// Sections of a report that only model-parallel plans have.
#include <fmt/core.h>

#include <algorithm>

#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/html/report_page.h"
#include "cli/render/model_parallel.h"
#include "cli/render/text/quantity.h"
#include "sim/core/plan_knobs.h"
#include "sim/pipeline/timeline_trace.h"

namespace shardwright::cli::html {

std::string model_parallel_words(const Plan& plan) {
  std::string words;
  for (const PlanKnob& knob : plan_knobs()) {
    if (!knob.write || !(knob.divides || knob.name == "offload")) continue;
    const std::string value = knob.write(plan);
    if (value.empty()) continue;
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", knob.name, value);
  }
  return words;
}

std::string pipeline_section(const Report& report) {
  if (!report.stages) return "";
  const sim::ParallelTimeline& timeline = *report.stages;
  std::string body;
  if (timeline.stages.size() > 1) {
    body += pipeline_picture(timeline);
    body += element(
        "p",
        fmt::format("The bubble takes {} of the stages' time until the last backward pass, over {} "
                    "micro-batches. Numbers are micro-batches; where a row has too many passes to "
                    "tell apart, heights are shares of time.",
                    percent(timeline.bubble), timeline.shape.micro_batches),
        "note");
    std::vector<std::vector<std::string>> rows;
    const sim::Prediction& base = report.explanation->base;
    for (const sim::StagePrediction& s : base.stages) {
      const auto stage = static_cast<std::int32_t>(s.stage);
      rows.push_back({fmt::format("{}", s.stage), sim::stage_content(timeline, stage),
                      duration(s.compute_s), duration(s.exposed_communication_s),
                      duration(s.bubble_s)});
    }
    body += table({"stage", "holds", "compute", "waits for data", "bubble"}, rows, 2);
  }
  const auto middle = static_cast<std::int32_t>(timeline.stages.size() / 2);
  const std::string opened = opened_picture(timeline, middle);
  if (!opened.empty()) {
    body +=
        element("h3",
                fmt::format("One layer of stage {}, micro-batch {}", middle,
                            timeline.stages[static_cast<std::size_t>(middle)].opened_micro_batch)) +
        opened;
  }
  return section(timeline.stages.size() > 1 ? "The pipeline" : "One layer", body);
}

std::string stage_memory_section(const Report& report) {
  const sim::Prediction& base = report.explanation->base;
  const auto worst = std::max_element(
      base.stages.begin(), base.stages.end(),
      [](const auto& a, const auto& b) { return a.peak_reserved_bytes < b.peak_reserved_bytes; });
  std::string body = stage_memory_picture(*report.stages, base.memory);
  body += element("p",
                  fmt::format("The fullest is stage {}: {} are allocated, the allocator holds {}, "
                              "and {} belong to the CUDA context, libraries and communicators; "
                              "{} are usable. Verdict: {}.",
                              worst->stage, bytes(worst->peak_allocated_bytes),
                              bytes(worst->peak_reserved_bytes), bytes(base.memory.runtime_bytes),
                              bytes(base.memory.usable_bytes), name_of(base.memory.verdict)),
                  "note");
  return section("Memory of every stage at its peak", body);
}

std::string cause_section(const Report& report) {
  const sim::Prediction& base = report.explanation->base;
  std::vector<std::vector<std::string>> rows;
  for (const Loss& loss : losses_of(base)) {
    rows.push_back(
        {loss.what, duration(loss.seconds), percent(loss.seconds / base.time.iteration_s)});
  }
  return section("Where the busiest stage's time goes",
                 cause_picture(base) + table({"beside computing", "time", "of the step"}, rows, 1));
}

}  // namespace shardwright::cli::html
