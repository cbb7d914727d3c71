// SPDX-License-Identifier: Apache-2.0
// shardwright_fit: fits the cost models to the published tables and rewrites the shipped data.
//
//   shardwright_fit gemm|collectives|attention|dispatch|all [--published DIR] [--out FILE]
//                   [--date D]
//   shardwright_fit steps [--published DIR] [--out DIR] [--date D]
//   shardwright_fit whole-runs|critical-batch [--published DIR] [--out FILE] [--date D]
//
// Without options the first reads profiles/data/published and rewrites
// profiles/data/fitted/gpu_cost.json of the source tree; parameter sets of GPUs without rows stay
// as they are. `steps` fits what only training run steps show (step_parameters.json) and rewrites
// the values where they live: gpu_cost.json, clusters, stacks, and the record of the fit.
// `whole-runs` fits the production factor to whole_runs.csv and rewrites fitted/whole_runs.json;
// `critical-batch` judges batch_laws.csv by the batches there and rewrites critical_batch.json.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/flags/command_line.h"
#include "profiles/batch_laws.h"
#include "profiles/data_dir.h"
#include "profiles/gpu_cost.h"
#include "sim/core/base/error.h"
#include "sim/fit/fit_attention.h"
#include "sim/fit/fit_collectives.h"
#include "sim/fit/fit_dispatch.h"
#include "sim/fit/fit_gemm.h"
#include "sim/fit/fit_steps.h"
#include "sim/score/kernel_tables.h"
#include "tuner/runs/critical_batch_fit.h"
#include "tuner/runs/whole_run_score.h"

namespace {

using namespace shardwright;
namespace fs = std::filesystem;

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

void print_errors(const std::string& what, const profiles::ErrorSummary& e) {
  fmt::print("  {:<34} n {:>4}   mean {:>6.2f} %   median {:>6.2f} %   p90 {:>6.2f} %\n", what, e.n,
             100 * e.mape, 100 * e.median, 100 * e.p90);
}

profiles::ErrorSummary rounded(profiles::ErrorSummary e) {
  for (double* value : {&e.mape, &e.median, &e.p90}) *value = std::round(*value * 1e5) / 1e5;
  return e;
}

template <typename Row>
std::map<std::string, std::vector<Row>> by_gpu(std::vector<Row> rows) {
  std::map<std::string, std::vector<Row>> groups;
  for (Row& row : rows) groups[row.gpu].push_back(std::move(row));
  return groups;
}

profiles::GpuCost& gpu_of(profiles::GpuCosts& costs, const std::string& id) {
  costs.at(id);  // throws for an unknown one
  return costs.gpus[id];
}

void mark_fitted(profiles::Provenance& p, std::string source, std::string command,
                 const std::string& date, const profiles::ErrorSummary& in_sample,
                 const profiles::ErrorSummary& held_out) {
  p.source = std::move(source);
  p.confidence = "fitted";
  p.command = std::move(command);
  p.date = date;
  p.in_sample = rounded(in_sample);
  p.held_out = rounded(held_out);
}

// GPUs that repeat a fitted one follow it, and keep what is their own: power, network, switch.

void copy_to_analogues(const std::string& id, profiles::GpuCosts& costs,
                       const profiles::GemmParams& fitted) {
  for (auto& [other, gpu] : costs.gpus) {
    if (gpu.gemm.provenance.analogue_of != id) continue;
    const double sustained_factor = gpu.gemm.values.sustained_factor;
    gpu.gemm.values = fitted;
    gpu.gemm.values.sustained_factor = sustained_factor;
  }
}

void copy_to_analogues(const std::string& id, profiles::GpuCosts& costs,
                       const profiles::CollectiveParams& fitted) {
  for (auto& [other, gpu] : costs.gpus) {
    if (gpu.collectives.provenance.analogue_of != id) continue;
    profiles::CollectiveParams& params = gpu.collectives.values;
    const profiles::CollectiveParams own = params;
    params = fitted;
    params.nvls = own.nvls;
    params.usual_net_bytes_per_s = own.usual_net_bytes_per_s;
  }
}

void copy_to_analogues(const std::string& id, profiles::GpuCosts& costs, const std::string& kernel,
                       const profiles::AttentionParams& fitted) {
  for (auto& [other, gpu] : costs.gpus) {
    const auto found = gpu.attention.find(kernel);
    if (found == gpu.attention.end() || found->second.provenance.analogue_of != id) continue;
    found->second.values = fitted;
  }
}

void fit_gemm_table(const fs::path& file, const std::string& date, profiles::GpuCosts& costs) {
  for (const auto& [id, rows] : by_gpu(sim::read_gemm_table(CsvTable::load(file)))) {
    profiles::GpuCost& gpu = gpu_of(costs, id);
    const sim::GemmFit fit = sim::fit_gemm(rows, gpu.rates.values, gpu.gemm.values);
    gpu.gemm.values = fit.params;
    copy_to_analogues(id, costs, fit.params);
    mark_fitted(
        gpu.gemm.provenance,
        "published/gemm.csv (aiconfigurator, NVIDIA); errors of m >= 2048 and n, k >= 1024, "
        "disturbed rows included; sustained_factor from published long runs",
        "shardwright_fit gemm", date, fit.in_sample, fit.held_out);
    fmt::print("gemm {}\n", id);
    print_errors("in sample", fit.in_sample);
    print_errors("held out", fit.held_out);
    print_errors("held out, without disturbed rows", fit.held_out_consistent);
    print_errors("held out, all sizes", fit.held_out_all_sizes);
  }
}

void fit_collective_table(const fs::path& file, const std::string& date,
                          profiles::GpuCosts& costs) {
  for (const auto& [id, rows] : by_gpu(sim::read_collective_table(CsvTable::load(file)))) {
    profiles::GpuCost& gpu = gpu_of(costs, id);
    const sim::CollectiveFit fit = sim::fit_collectives(rows, gpu.collectives.values);
    gpu.collectives.values = fit.params;
    copy_to_analogues(id, costs, fit.params);
    mark_fitted(gpu.collectives.provenance,
                "published/collectives.csv (nccl-tests in aiconfigurator, NVIDIA); nominal rates "
                "from NVIDIA/nccl v2.28.9-1, except B200's LL128 cap inside a node, set where the "
                "table switches to Simple; NVLS ceiling from stas00/ml-engineering and "
                "Azure/AI-benchmarking-guide",
                "shardwright_fit collectives", date, fit.in_sample, fit.held_out);
    fmt::print("collectives {}\n", id);
    print_errors("in sample", fit.in_sample);
    print_errors("held out", fit.held_out);
  }
}

void fit_attention_table(const fs::path& file, const std::string& date, profiles::GpuCosts& costs) {
  std::map<std::pair<std::string, std::string>, std::vector<sim::AttentionRow>> groups;
  for (sim::AttentionRow& row : sim::read_attention_table(CsvTable::load(file)))
    groups[{row.gpu, row.kernel}].push_back(std::move(row));
  for (const auto& [key, rows] : groups) {
    auto& kernels = gpu_of(costs, key.first).attention;
    if (!kernels.contains(key.second))
      throw Error(
          fmt::format("{}: {} has no attention kernel '{}' to fit, expected one that "
                      "gpu_cost.json names",
                      file.string(), key.first, key.second));
    auto& params = kernels[key.second];
    const sim::AttentionFit fit = sim::fit_attention(rows, params.values);
    if (!fit.forward_fitted && !fit.backward_fitted) continue;
    params.values = fit.params;
    copy_to_analogues(key.first, costs, key.second, fit.params);
    std::string passes = fit.forward_fitted && fit.backward_fitted ? "forward and backward"
                         : fit.forward_fitted                      ? "forward; backward by ratio"
                                                                   : "backward";
    mark_fitted(params.provenance,
                fmt::format("published/attention.csv, {}; other head sizes are estimates", passes),
                "shardwright_fit attention", date, fit.in_sample, fit.held_out);
    fmt::print("attention {} {}\n", key.first, key.second);
    print_errors("in sample", fit.in_sample);
    print_errors("held out", fit.held_out);
  }
}

template <typename Params>
void mark_dispatch(profiles::Sourced<Params>& set, const sim::DispatchFit<Params>& fit,
                   const std::string& what, const std::string& source, const std::string& date) {
  set.values = fit.params;
  mark_fitted(set.provenance, source, "shardwright_fit dispatch", date, fit.in_sample,
              fit.held_out);
  fmt::print("{}\n", what);
  print_errors("in sample", fit.in_sample);
  print_errors("held out", fit.held_out);
}

void fit_dispatch_tables(const fs::path& tables, const std::string& date,
                         profiles::GpuCosts& costs) {
  for (const auto& [id, rows] :
       by_gpu(sim::read_dispatch_table(CsvTable::load(tables / "dispatch.csv")))) {
    profiles::GpuCost& gpu = gpu_of(costs, id);
    mark_dispatch(gpu.dispatch, sim::fit_dispatch(rows, {}), "dispatch " + id,
                  "published/dispatch.csv (DeepEP in one node, aiconfigurator, NVIDIA)", date);
  }
  for (const auto& [id, rows] :
       by_gpu(sim::read_exchange_table(CsvTable::load(tables / "exchange.csv")))) {
    profiles::GpuCost& gpu = gpu_of(costs, id);
    mark_dispatch(gpu.exchange, sim::fit_exchange(rows, {}), "exchange " + id,
                  "published/exchange.csv (nccl-tests in aiconfigurator, NVIDIA)", date);
  }
}

void print_score(const std::string& what, const sim::LeaveOneOutScore& score) {
  fmt::print("  {:<34}{:>4}", what, score.time[0].n);
  for (const sim::ErrorScore& errors : score.time) {
    fmt::print("  {:>6.2f} {:>6.2f} {:>6.2f}", 100 * errors.mape, 100 * errors.median,
               100 * errors.worst);
  }
  fmt::print("  {:>4} {:>4} {:>4}\n", score.inside, score.inside_cell_out, score.inside_source_out);
}

void fit_step_table(const fs::path& ledger, const std::string& date, const fs::path& out) {
  const fs::path data = profiles::data_dir();
  sim::FitStepsOptions options;
  options.date = date;
  const sim::FittedSteps fitted = sim::fit_steps(
      profiles::load_ledger(ledger),
      profiles::load_step_parameters(data / "fitted" / "step_parameters.json"), options);
  for (const profiles::StepParameter& p : fitted.parameters.parameters) {
    if (!p.fitted) continue;
    fmt::print("{:<40} prior {:<10.4g} fitted {:<10.4g} {:.4g} to {:.4g}\n", p.name, p.prior,
               p.fitted->value, p.fitted->interval[0], p.fitted->interval[1]);
  }
  fmt::print(
      "errors in %: mean, median, worst; in sample, run, cell, source left out; times "
      "inside the interval\n");
  for (const auto& [source, score] : fitted.leave_one_out.by_source) print_score(source, score);
  print_score("all", fitted.leave_one_out.all);
  for (const profiles::NoveltyWidth& width : fitted.uncertainty.widths) {
    fmt::print("{:<12} +-{:.1f} % ({} runs, {} cells: {})\n", name_of(width.novelty),
               100 * width.half_width, width.runs, width.cells, width.errors);
  }
  const profiles::Uncertainty& known = fitted.uncertainty;
  fmt::print("by simulation {:.1f} % of new cells inside\n",
             100 * fitted.leave_one_out.simulated_coverage);
  fmt::print(
      "memory       +{:.1f} -{:.1f} % ({} runs), of another framework +{:.1f} -{:.1f} % ({} "
      "sources)\n",
      100 * known.memory.more, 100 * known.memory.less, known.memory_runs,
      100 * known.memory_of_others.more, 100 * known.memory_of_others.less, known.memory_sources);
  for (const fs::path& file : sim::save_steps(fitted, data, out.empty() ? data : out)) {
    fmt::print("{}\n", file.string());
  }
}

void print_coverage(const char* what, const profiles::Coverage& coverage) {
  fmt::print("  {:<20} {} of {} inside, half of them within a factor of {:.2f}\n", what,
             coverage.inside, coverage.n, coverage.median_ratio);
}

void fit_whole_run_table(const fs::path& table, const std::string& date, const fs::path& out) {
  profiles::Production fitted = tuner::fit_whole_runs(profiles::load_whole_runs(table));
  fitted.source = "published/whole_runs.csv, tiers A and B";
  fitted.command = "shardwright_fit whole-runs";
  fitted.date = date;
  for (const profiles::FittedWholeRun& run : fitted.runs) {
    fmt::print("{:<24} ideal {:>12.0f}   published {:>12.0f}   ratio {:.2f}\n", run.id,
               run.ideal_gpu_hours, run.published_gpu_hours,
               run.published_gpu_hours / run.ideal_gpu_hours);
  }
  fmt::print(
      "whole / ideal = {:.3f}, slope of small models in large jobs {:.3f}; interval of {:.0f} %: "
      "x {:.3f} to x {:.3f}, upper over lower end {:.2f}\n",
      std::exp(fitted.log_factor), fitted.small_model, 100 * fitted.level,
      std::exp(-fitted.half_widths[0]), std::exp(fitted.half_widths[1]),
      std::exp(fitted.half_widths[0] + fitted.half_widths[1]));
  print_coverage("in sample", fitted.in_sample);
  print_coverage("family left out", fitted.family_out);
  profiles::save_production(fitted, out);
  fmt::print("{}\n", out.string());
}

void judge_laws(const fs::path& tables, const std::string& date, const fs::path& out) {
  profiles::CriticalBatch fitted =
      tuner::judge_batch_laws(profiles::load_batch_laws(tables / "batch_laws.csv"),
                              profiles::load_whole_runs(tables / "whole_runs.csv"));
  fitted.source = "published/batch_laws.csv, judged by the batches of published/whole_runs.csv";
  fitted.command = "shardwright_fit critical-batch";
  fitted.date = date;
  for (const profiles::BatchLaw& law : fitted.laws) {
    fmt::print(
        "{:<14} {} of {} published batches beyond critical; share {:.2f} in the middle, {:.2f} at "
        "most; scatter x/: {:.2f}\n",
        law.id, law.beyond, law.n, law.median_share, law.greatest_share, std::exp(law.spread));
  }
  fmt::print("ships: {}\n", fitted.law);
  profiles::save_critical_batch(fitted, out);
  fmt::print("{}\n", out.string());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> tables_to_fit = {"gemm",       "collectives",   "attention",
                                                  "dispatch",   "all",           "steps",
                                                  "whole-runs", "critical-batch"};
  std::string what, published, out, date = today();
  cli::CommandLine line(
      "shardwright_fit",
      "Fits the cost models to published measurements and rewrites the shipped data");
  cli::Command command = line.root();
  command
      .add_parsed(
          "what",
          [&](const std::string& word) {
            if (std::find(tables_to_fit.begin(), tables_to_fit.end(), word) == tables_to_fit.end())
              fail_word("what", word, tables_to_fit);
            what = word;
          },
          "gemm, collectives, attention, dispatch, all of these, steps, whole-runs, or "
          "critical-batch")
      .required();
  command.add("--published", published,
              "folder with gemm.csv, collectives.csv, attention.csv, ledger.csv, whole_runs.csv");
  command.add("--out", out,
              "file to write, by default the shipped gpu_cost.json; of steps, a data folder");
  command.add("--date", date, "date to record, YYYY-MM-DD");
  try {
    if (const auto answer = line.parse(argc, argv).answer) {
      fmt::print("{}", *answer);
      return static_cast<int>(ExitCode::kDone);
    }
    const fs::path data = profiles::data_dir();
    const fs::path tables = published.empty() ? data / "published" : fs::path(published);
    if (what == "steps") {
      fit_step_table(tables / "ledger.csv", date, out);
      return static_cast<int>(ExitCode::kDone);
    }
    if (what == "whole-runs") {
      fit_whole_run_table(tables / "whole_runs.csv", date,
                          out.empty() ? profiles::shipped_production() : fs::path(out));
      return static_cast<int>(ExitCode::kDone);
    }
    if (what == "critical-batch") {
      judge_laws(tables, date, out.empty() ? profiles::shipped_critical_batch() : fs::path(out));
      return static_cast<int>(ExitCode::kDone);
    }
    profiles::GpuCosts costs = profiles::load_gpu_costs();
    if (what == "gemm" || what == "all") fit_gemm_table(tables / "gemm.csv", date, costs);
    if (what == "collectives" || what == "all")
      fit_collective_table(tables / "collectives.csv", date, costs);
    if (what == "attention" || what == "all")
      fit_attention_table(tables / "attention.csv", date, costs);
    if (what == "dispatch" || what == "all") fit_dispatch_tables(tables, date, costs);
    profiles::save_gpu_costs(costs,
                             out.empty() ? data / "fitted" / "gpu_cost.json" : fs::path(out));
    return static_cast<int>(ExitCode::kDone);
  } catch (const Error& error) {
    fmt::print(stderr, "shardwright_fit: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
