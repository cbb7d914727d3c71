// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/report_page.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/measured/compared_communication.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"

namespace shardwright::cli::html {
namespace {

constexpr double kGib = 1 << 30;

std::string provenance_section(const Report& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, words] : report.provenance) rows.push_back({what, words});
  return section("Where this comes from", table({}, rows, 2));
}

std::string title_of(const Report& report) {
  if (!report.inputs) return "Shardwright: timeline of a step";
  const Plan& plan = report.inputs->plans.front();
  return fmt::format("Shardwright: {} on {} GPUs, {}", report.inputs->model_name, plan.gpus,
                     name_of(plan.strategy));
}

}  // namespace

std::string timeline_sections(const Report& report) {
  if (report.strips.empty()) return "";
  std::string layers;
  if (const std::optional<std::int32_t> layer = middle_layer(report.strips.front())) {
    for (const bool backward : {false, true}) {
      const std::string picture = layer_picture(report.strips, *layer, backward);
      if (picture.empty()) continue;
      layers +=
          element("h3", fmt::format("Layer {} {}", *layer, backward ? "backward" : "forward"));
      layers += picture;
    }
    layers += element("p", "dX and dW are the gradients of a GEMM's input and weight.", "note");
  }
  if (report.stages || report.measured_stages) {
    const sim::StepTrace& staged = report.stages ? *report.stages : *report.measured_stages;
    return section(fmt::format("One layer of stage {}", staged.timeline.stage_count() / 2), layers);
  }
  Bytes limit = 0;
  if (report.explanation) {
    const sim::MemoryPrediction& memory = report.explanation->base.memory;
    limit = std::max<Bytes>(0, memory.usable_bytes - memory.runtime_bytes);
  }
  return section("One layer", layers) + section("The step", step_picture(report.strips, limit));
}

std::string measured_section(const Report& report) {
  if (!report.comparison) return "";
  const sim::TraceComparison& comparison = *report.comparison;
  constexpr std::size_t kMostClasses = 12;
  std::vector<std::vector<std::string>> rows = {
      {"first kernel to last", "", duration(comparison.predicted_step_s),
       duration(comparison.measured_step_s),
       deviation_text(comparison.measured_step_s, comparison.predicted_step_s)}};
  for (const sim::ComparedClass& c : comparison.classes) {
    if (rows.size() > kMostClasses) break;
    rows.push_back(
        {fmt::format("{} {}", name_of(c.phase), name_of(*c.kind)), fmt::format("{}", c.operations),
         duration(c.predicted_s), duration(c.measured_s),
         c.predicted_s > 0 && c.measured_s > 0 ? deviation_text(c.measured_s, c.predicted_s) : ""});
  }
  for (std::vector<std::string>& row : rows) std::replace(row[0].begin(), row[0].end(), '_', ' ');
  std::string body =
      table({"class of operations", "operations", "predicted", "measured", "difference"}, rows, 1);
  std::vector<std::vector<std::string>> waits;
  for (const CommunicationRow& row : communication_rows(comparison))
    waits.push_back({row.what, duration(row.predicted_s), duration(row.measured_s)});
  body += table({"communication by group", "predicted", "measured"}, waits, 1);
  if (comparison.measured_ranks > 1) {
    body += element(
        "p", fmt::format("Measured: the median of {} ranks.", comparison.measured_ranks), "note");
  }
  if (!comparison.plan_differences.empty()) {
    body += element("p",
                    fmt::format("What was measured is of another plan: {}.",
                                fmt::join(comparison.plan_differences, "; ")),
                    "note");
  }
  return section("Predicted and measured", body);
}

std::string why_section(const Report& report) {
  if (!report.tuning) return "";
  const TuningSummary& tuning = *report.tuning;
  std::string body = list(tuning.why);
  std::vector<PlanPoint> points;
  std::vector<Plan> seen;
  std::vector<std::vector<std::string>> rows;
  double usable = 0;
  bool shown = !report.inputs;
  for (const std::vector<TunedPlan>* plans : {&tuning.top, &tuning.pareto}) {
    for (const TunedPlan& tuned : *plans) {
      if (std::find(seen.begin(), seen.end(), tuned.plan) != seen.end()) continue;
      seen.push_back(tuned.plan);
      usable = tuned.usable_bytes / kGib;
      std::string words = plan_words(tuned.plan);
      if (report.inputs && tuned.plan == report.inputs->plans.front()) {
        words += " (this report)";
        shown = true;
      }
      points.push_back({tuned.tokens_per_s, tuned.total_bytes / kGib, words, points.empty()});
      rows.push_back({fmt::format("{}", points.size()), words, duration(tuned.iteration_s),
                      thousands(tuned.tokens_per_s), bytes(tuned.total_bytes)});
    }
  }
  if (!rows.empty()) {
    body += "<h3>The best plans, and the fastest for less memory</h3>\n";
    body += plans_picture(points, usable);
    body += table({"", "plan", "step", "tokens/s", "memory"}, rows, 2);
  }
  if (!shown) {
    body += element(
        "p", "The plan of this report is none of these: it was changed or is another's.", "note");
  }
  if (tuning.considered > 0) {
    body += element("p",
                    fmt::format("{} plans were considered in {}{}.", thousands(tuning.considered),
                                duration(tuning.seconds),
                                tuning.objective.empty() ? "" : ", ranked by " + tuning.objective),
                    "note");
  }
  return section("Why this plan and not another", body);
}

std::string report_page(const Report& report) {
  return page(title_of(report),
              head_section(report) + asked_section(report) + memory_section(report) +
                  time_section(report) + pipeline_section(report) + timeline_sections(report) +
                  measured_section(report) + why_section(report) + provenance_section(report));
}

}  // namespace shardwright::cli::html
