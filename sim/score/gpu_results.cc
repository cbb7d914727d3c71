// SPDX-License-Identifier: Apache-2.0
#include "sim/score/gpu_results.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiles/cluster_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"
#include "sim/core/plan_json.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

constexpr const char* kSchema = "shardwright.gpu_results/1.0";
constexpr std::size_t kMostResultsBytes = std::size_t{256} << 20;

Prediction predict_on(Job job, const profiles::ClusterFile& cluster, const Plan& plan,
                      const std::vector<std::string>& overrides) {
  job.overrides.insert(job.overrides.end(), overrides.begin(), overrides.end());
  const profiles::Profile profile =
      profiles::make_profile(cluster, profiles::load_stack(plan.stack), job.overrides);
  check_plan(plan, job.model, profile.cluster.gpus_per_node);
  return predict(job.model, profile, plan);
}

ErrorScore score_of_runs(std::vector<double> errors) {
  for (double& error : errors) error = std::abs(error);
  const profiles::ErrorSummary summary = summarize_errors(errors);
  return {summary.n, summary.mape, summary.median,
          errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end())};
}

/// One row of the models' part. `plan_text` is its plan's document.
GpuRun predict_run(const JsonReader& row, const std::string& plan_text, const std::string& name,
                   const std::string& cluster, const std::optional<profiles::ClusterFile>& measured,
                   const std::vector<std::string>& overrides) {
  GpuRun run;
  run.model = row.require<std::string>("model");
  run.gpus = row.require<std::int64_t>("gpus", at_least<std::int64_t>(1));
  run.measured_s = row.require<double>("step_s", above(0.0));
  run.then_s = row.find<double>("predicted_step_s", above(0.0));
  run.peak_bytes = row.require<std::int64_t>("peak_bytes", at_least<std::int64_t>(1));
  if (const auto attention = row.find_object("attention")) {
    run.attention = attention->optional<std::string>("kernel", "");
  }
  const PlanDocument document = parse_plan(plan_text, name);
  Job job = job_of(document, name, std::nullopt, cluster);
  job.overrides = document.overrides;
  const Prediction today = predict_on(job, job.cluster_file, document.plan, overrides);
  run.predicted_s = today.time.iteration_s;
  run.predicted_peak_bytes = today.memory.peak_allocated_bytes;
  if (measured) {
    job.overrides.clear();  // what the machine itself says needs none
    run.after_s = predict_on(job, *measured, document.plan, overrides).time.iteration_s;
  }
  return run;
}

void summarize_runs(GpuResults& results) {
  std::vector<double> time, after, memory;
  for (const GpuRun& run : results.runs) {
    time.push_back(run.error());
    if (run.after_s) after.push_back(*run.after_s / run.measured_s - 1);
    memory.push_back(
        static_cast<double>(run.predicted_peak_bytes) / static_cast<double>(run.peak_bytes) - 1);
  }
  results.time = score_of_runs(std::move(time));
  results.after = score_of_runs(std::move(after));
  results.memory = score_of_runs(std::move(memory));
}

}  // namespace

GpuResults score_gpu_results(const std::filesystem::path& file,
                             const std::vector<std::string>& overrides) {
  const std::string text = read_file(file, kMostResultsBytes);
  const std::string name = file.string();
  const JsonFile checked = JsonFile::parse(text, name, {kMostResultsBytes, 64});
  const JsonReader root = checked.root();
  root.require_choice("schema", {kSchema});
  GpuResults results;
  results.when = root.optional<std::string>("when", "");
  const std::vector<JsonReader> gpus = root.require_object("machine").require_array("gpus");
  if (!gpus.empty()) results.gpu = gpus.front().require<std::string>("name");
  const JsonReader parts = root.require_object("parts");
  const auto models = parts.find_object("models");
  if (!models) {
    throw Error(
        fmt::format("{}: parts.models lacks, expected runs of models (gpu_check --only "
                    "models measure)",
                    name));
  }
  results.cluster = models->require<std::string>("cluster");

  const nlohmann::json whole = parse_json(text);
  std::optional<profiles::ClusterFile> measured;
  if (const auto measure = parts.find_object("measure");
      measure && measure->has("profile_document")) {
    measured = profiles::parse_cluster(whole["parts"]["measure"]["profile_document"].dump(),
                                       name + ": parts.measure.profile_document");
  }
  const nlohmann::json& runs = whole["parts"]["models"].value("runs", nlohmann::json::array());
  const std::vector<JsonReader> rows = models->require_array("runs");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].has("step_s")) {
      const std::string why = rows[i].optional<std::string>("skipped", "failed");
      results.skipped.push_back(fmt::format("{} on {}: {}", rows[i].require<std::string>("model"),
                                            rows[i].require<std::int64_t>("gpus"), why));
      continue;
    }
    rows[i].require_object("plan_document");
    results.runs.push_back(
        predict_run(rows[i], runs[i]["plan_document"].dump(),
                    fmt::format("{}: parts.models.runs[{}].plan_document", name, i),
                    results.cluster, measured, overrides));
  }
  summarize_runs(results);
  return results;
}

}  // namespace shardwright::sim
