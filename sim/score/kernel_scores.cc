// SPDX-License-Identifier: Apache-2.0
#include "sim/score/kernel_scores.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "profiles/cluster_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"
#include "sim/core/plan_json.h"
#include "sim/cost/gemm_cost.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "sim/score/validation.h"

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
  return score_errors(errors);
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

namespace {

std::int64_t positive_count(const CsvRow& row, std::string_view column) {
  const auto value = row.require<std::int64_t>(column);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (value < 1 || value > kMost) row.fail(column, "an integer from 1 to 2^40");
  return value;
}

double positive_time_s(const CsvRow& row) {
  const double us = row.require<double>("time_us");
  if (!(us > 0 && us < 1e12)) row.fail("time_us", "microseconds above 0");
  return us * 1e-6;
}

std::string gpu_of(const CsvRow& row) {
  if (row.text("gpu").empty()) row.fail("gpu", "the id of a GPU");
  return std::string(row.text("gpu"));
}

Collective collective_of(const CsvRow& row) {
  const auto collective = from_word<Collective>(row.text("collective"));
  if (!collective) row.fail("collective", "all_gather, reduce_scatter, all_reduce or broadcast");
  return *collective;
}

}  // namespace

std::vector<GemmRow> read_gemm_table(const CsvTable& table) {
  for (const auto column : {"gpu", "m", "n", "k", "time_us"}) table.column(column);
  std::vector<GemmRow> rows;
  rows.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    rows.push_back({gpu_of(row), positive_count(row, "m"), positive_count(row, "n"),
                    positive_count(row, "k"), positive_time_s(row), row.line()});
  }
  return rows;
}

std::vector<CollectiveRow> read_collective_table(const CsvTable& table) {
  for (const auto column : {"gpu", "gpus", "nodes", "collective", "total_bytes", "time_us"})
    table.column(column);
  const bool has_network = table.has_column("inter_gbps_per_node");
  std::vector<CollectiveRow> rows;
  rows.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    CollectiveRow r;
    r.gpu = gpu_of(row);
    r.ranks = positive_count(row, "gpus");
    if (r.ranks < 2) row.fail("gpus", "at least 2 ranks");
    r.nodes = positive_count(row, "nodes");
    if (r.ranks % r.nodes != 0) row.fail("nodes", "a number that divides the ranks");
    r.collective = collective_of(row);
    r.bytes = static_cast<double>(positive_count(row, "total_bytes"));
    r.time_s = positive_time_s(row);
    if (has_network) {
      const double gbps = row.optional<double>("inter_gbps_per_node", 0);
      if (gbps < 0) row.fail("inter_gbps_per_node", "Gb/s of at least 0");
      r.inter_bytes_per_s = gbps * 1e9 / 8;
    }
    r.line = row.line();
    rows.push_back(std::move(r));
  }
  return rows;
}

bool is_training_size(const GemmRow& row) {
  return row.m >= 2048 && row.n >= 1024 && row.k >= 1024;
}

std::vector<bool> contradicted_rows(const std::vector<GemmRow>& rows) {
  std::vector<bool> contradicted(rows.size(), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const GemmRow& other : rows) {
      const GemmRow& row = rows[i];
      if (other.time_s * 1.1 < row.time_s && other.m >= row.m && other.n >= row.n &&
          other.k >= row.k && other.gpu == row.gpu) {
        contradicted[i] = true;
        break;
      }
    }
  }
  return contradicted;
}

namespace {

GroupScore score_group(const std::vector<KernelError>& rows,
                       const std::function<bool(const KernelError&)>& belongs) {
  std::vector<double> all;
  std::map<std::string, std::vector<double>> by_gpu;
  for (const KernelError& row : rows) {
    if (!belongs(row)) continue;
    all.push_back(row.error);
    by_gpu[row.gpu].push_back(row.error);
  }
  GroupScore score;
  score.all = summarize_errors(all);
  for (const auto& [gpu, errors] : by_gpu) score.by_gpu[gpu] = summarize_errors(errors);
  return score;
}

KernelError compare(const std::string& gpu, std::size_t line, std::string what, double predicted,
                    double measured) {
  KernelError error;
  error.line = line;
  error.gpu = gpu;
  error.what = std::move(what);
  error.predicted_s = predicted;
  error.measured_s = measured;
  error.error = relative_error(predicted, measured);
  return error;
}

/// The GPU of a row; an unknown one is an error of the table.
const profiles::GpuCost& gpu_of(const profiles::GpuCosts& costs, const std::string& gpu,
                                const CsvTable& table, std::size_t line) {
  try {
    return costs.at(gpu);
  } catch (const Error& error) {
    throw Error(fmt::format("{}, line {}, column gpu: {}", table.file(), line, error.what()));
  }
}

}  // namespace

double predicted_time_s(const GemmRow& row, const profiles::GemmParams& params,
                        const profiles::GpuRates& gpu) {
  return gemm_time_s(params, gpu, row.m, row.n, row.k, gpu.sm_count);
}

double predicted_time_s(const CollectiveRow& row, const profiles::CollectiveParams& params) {
  // A table gives the line rate of the NICs; rings reach 0.96 of it.
  constexpr double kNicEfficiency = 0.96;
  NodeNetwork network;
  network.bytes_per_s = row.inter_bytes_per_s > 0 ? row.inter_bytes_per_s * kNicEfficiency
                                                  : params.usual_net_bytes_per_s;
  const CollectiveGroup group{.ranks = row.ranks, .ranks_per_node = row.ranks / row.nodes};
  return collective_cost(params, network, group, row.collective, row.bytes).time_s;
}

KernelScore score_gemm(const CsvTable& table, const profiles::GpuCosts& costs) {
  const std::vector<GemmRow> rows = read_gemm_table(table);
  const std::vector<bool> contradicted = contradicted_rows(rows);
  KernelScore score;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const GemmRow& row = rows[i];
    const profiles::GpuCost& gpu = gpu_of(costs, row.gpu, table, row.line);
    const double predicted = predicted_time_s(row, gpu.gemm.values, gpu.rates.values);
    KernelError error = compare(row.gpu, row.line, fmt::format("{}x{}x{}", row.m, row.n, row.k),
                                predicted, row.time_s);
    error.training_size = is_training_size(row);
    error.contradicted = contradicted[i];
    score.rows.push_back(std::move(error));
  }
  score.all = score_group(score.rows, [](const KernelError&) { return true; });
  score.training_size = score_group(score.rows, [](const auto& row) { return row.training_size; });
  score.training_size_consistent = score_group(
      score.rows, [](const auto& row) { return row.training_size && !row.contradicted; });
  return score;
}

KernelScore score_collectives(const CsvTable& table, const profiles::GpuCosts& costs) {
  KernelScore score;
  for (const CollectiveRow& row : read_collective_table(table)) {
    const profiles::CollectiveParams& params =
        gpu_of(costs, row.gpu, table, row.line).collectives.values;
    if (row.nodes > 1 && row.inter_bytes_per_s <= 0 && params.usual_net_bytes_per_s <= 0)
      throw Error(fmt::format(
          "{}, line {}, column inter_gbps_per_node: not given, and {} has no usual network between "
          "nodes, expected the Gb/s of a node",
          table.file(), row.line, row.gpu));
    score.rows.push_back(compare(row.gpu, row.line,
                                 fmt::format("{} {}x{} {:.0f}", name_of(row.collective),
                                             row.ranks / row.nodes, row.nodes, row.bytes),
                                 predicted_time_s(row, params), row.time_s));
  }
  score.all = score_group(score.rows, [](const KernelError&) { return true; });
  return score;
}

}  // namespace shardwright::sim
