// SPDX-License-Identifier: Apache-2.0
// The report: one page that says what was asked, what is predicted, where time and memory go, why
// this plan, what was measured, and where all of it comes from.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/render/html/strip.h"
#include "cli/render/json/tuning_file.h"
#include "sim/explain/explain.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli::html {

/// What is not there leaves its section out.
struct Report {
  std::optional<sim::Job> inputs;               // with one plan
  std::optional<sim::Explanation> explanation;  // of a pipeline its base alone
  std::vector<Strip> strips;  // predicted, then measured; of a pipeline's stage in the middle
  std::optional<sim::StepTrace> stages, measured_stages;  // of a pipeline
  std::optional<sim::TraceComparison> comparison;
  std::optional<TuningSummary> tuning;
  std::vector<std::pair<std::string, std::string>> provenance;

  bool asks_for_stages() const { return inputs && inputs->plans.front().parallel.pp > 1; }
};

std::string report_page(const Report& report);

/// Sections of the page: HTML, or nothing where the report lacks what they show.
std::string head_section(const Report& report);
std::string asked_section(const Report& report);
std::string memory_section(const Report& report);
std::string time_section(const Report& report);
std::string timeline_sections(const Report& report);
std::string measured_section(const Report& report);
std::string why_section(const Report& report);
std::string pipeline_section(const Report& report);

/// Of model-parallel plans in place of memory_section and time_section.
std::string stage_memory_section(const Report& report);
std::string cause_section(const Report& report);
/// "tp 8, pp 4": how the model is divided, and in which precision.
std::string model_parallel_words(const Plan& plan);

}  // namespace shardwright::cli::html
