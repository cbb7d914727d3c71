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
#include "sim/trace/pipeline_summary.h"

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
  const Timeline& timeline = report.stages->timeline;
  std::string body = pipeline_picture(timeline);
  if (const auto pipeline = sim::pipeline_of(*report.stages)) {
    body += element("p",
                    fmt::format("The bubble takes {} of the stages' time until the last backward "
                                "pass. Numbers are micro-batches; where a row has too many passes "
                                "to tell apart, heights are shares of time.",
                                percent(pipeline->bubble())),
                    "note");
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [rank, holds] : timeline.stages) {
    rows.push_back({fmt::format("{}", holds.stage), holds.content});
    if (!report.explanation) continue;
    const std::vector<sim::StagePrediction>& stages = report.explanation->base.stages;
    if (holds.stage >= std::ssize(stages)) continue;
    const sim::StagePrediction& s = stages[static_cast<std::size_t>(holds.stage)];
    rows.back().insert(
        rows.back().end(),
        {duration(s.compute_s), duration(s.exposed_communication_s), duration(s.bubble_s)});
  }
  body += table({"stage", "holds", "compute", "waits for data", "bubble"}, rows, 2);
  return section("The pipeline", body);
}

std::string stage_memory_section(const Report& report) {
  const sim::Prediction& base = report.explanation->base;
  const auto worst = std::max_element(
      base.stages.begin(), base.stages.end(),
      [](const auto& a, const auto& b) { return a.peak_reserved_bytes < b.peak_reserved_bytes; });
  std::string body = stage_memory_picture(base);
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
