// SPDX-License-Identifier: Apache-2.0
// Sections of a report that only model-parallel plans have.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/html/report_page.h"
#include "cli/render/stages.h"
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

namespace {

/// One side of the section.
struct Side {
  std::string title;
  const sim::StepTrace* trace;
  std::optional<sim::PipelineSummary> summary;
};

std::vector<Side> sides_of(const Report& report) {
  std::vector<Side> sides;
  const auto add = [&](const char* title, const std::optional<sim::StepTrace>& trace) {
    if (trace) sides.push_back({title, &*trace, sim::pipeline_of(*trace)});
  };
  add("predicted", report.stages);
  add("measured", report.measured_stages);
  return sides;
}

std::string bubble_note(const std::vector<Side>& sides) {
  std::string bubbles;
  for (const Side& side : sides) {
    if (!side.summary) continue;
    bubbles += fmt::format("{}{}{}", bubbles.empty() ? "" : ", ", percent(side.summary->bubble()),
                           sides.size() > 1 ? " " + side.title : "");
  }
  if (bubbles.empty()) return "";
  return element("p",
                 fmt::format("The bubble takes {} of the stages' time until the last backward "
                             "pass. Numbers are micro-batches; where a row has too many passes "
                             "to tell apart, heights are shares of time.",
                             bubbles),
                 "note");
}

/// What each stage holds, and where its time goes on every side.
std::string stages_table(const Report& report, const std::vector<Side>& sides) {
  std::map<std::int32_t, std::string> contents;  // by stage
  for (const auto& [rank, of] : sides.front().trace->timeline.stages)
    contents[of.stage] = of.content;
  std::vector<std::string> head = {"stage", "holds"};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [stage, content] : contents) rows.push_back({fmt::format("{}", stage), content});
  const auto add = [&](const std::string& title, std::size_t count, auto&& seconds) {
    head.push_back(title);
    for (std::size_t s = 0; s < rows.size(); ++s)
      rows[s].push_back(s < count ? duration(seconds(s)) : "");
  };
  if (sides.size() == 1 && report.explanation) {
    const std::vector<sim::StagePrediction>& stages = report.explanation->base.stages;
    add("compute", stages.size(), [&](std::size_t s) { return stages[s].compute_s; });
    add("waits for data", stages.size(),
        [&](std::size_t s) { return stages[s].exposed_communication_s; });
    add("bubble", stages.size(), [&](std::size_t s) { return stages[s].bubble_s; });
    return table(head, rows, 2);
  }
  for (const bool busy : {true, false}) {
    for (const Side& side : sides) {
      if (!side.summary) continue;
      const std::vector<sim::StageSummary>& stages = side.summary->stages;
      add(fmt::format("{}, {}", busy ? "busy" : "bubble", side.title), stages.size(),
          [&](std::size_t s) { return busy ? stages[s].busy_s : stages[s].bubble_s(); });
    }
  }
  return table(head, rows, 2);
}

}  // namespace

std::string pipeline_section(const Report& report) {
  const std::vector<Side> sides = sides_of(report);
  if (sides.empty()) return "";
  std::vector<DrawnPipeline> drawn;
  for (const Side& side : sides) drawn.push_back({side.title, usual_step(side.trace->timeline)});
  return section("The pipeline",
                 pipeline_picture(drawn) + bubble_note(sides) + stages_table(report, sides));
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
