// SPDX-License-Identifier: Apache-2.0
#include "sim/score/score_kernels.h"

#include <fmt/core.h>

#include <functional>

#include "sim/core/base/error.h"
#include "sim/cost/gemm_cost.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
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
