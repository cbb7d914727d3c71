// SPDX-License-Identifier: Apache-2.0
// Scores the cost models against tables of measured kernels: what `validate --gemm` and
// `validate --collectives` print.
//
// GEMMs are scored at burst clocks, as benchmarks run them; the sustained factor is for
// training. Every row counts; rows that the table itself contradicts are also
// left out in a second summary, because no model can be right about both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/core/base/csv.h"
#include "sim/core/units.h"
#include "sim/cost/collectives.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

// Runs that scripts/gpu_check timed on a machine, predicted anew: what `validate --gpu-results`
// prints.
//
// The file "shardwright.gpu_results/1.0" holds the plan of each run, the step that was measured and
// the one that was predicted then. Here every run is predicted with today's constants for the
// cluster that the file names and, where the machine was measured, with its own profile.

struct GpuRun {
  std::string model;
  std::int64_t gpus = 1;
  std::string attention;           // that ran; empty: the file does not say
  double measured_s = 0;           // of a step
  std::optional<double> then_s;    // predicted when it was measured
  double predicted_s = 0;          // today, for the cluster
  std::optional<double> after_s;   // today, with what was measured on the machine
  Bytes peak_bytes = 0;            // of the run's own memory
  Bytes predicted_peak_bytes = 0;  // allocated, today
  double error() const { return predicted_s / measured_s - 1; }
};

struct GpuResults {
  std::string gpu, when, cluster;
  std::vector<GpuRun> runs;
  std::vector<std::string> skipped;  // "llama-3.1-8b on 1: needs ..."
  ErrorScore time, after, memory;
};

/// Throws Error naming file and key.
GpuResults score_gpu_results(const std::filesystem::path& file,
                             const std::vector<std::string>& overrides = {});

// Tables of measured kernels: GEMMs and collectives, as CSV files with one row each.
//
// gemm.csv        gpu,m,n,k,time_us[,source]
// collectives.csv gpu,gpus,nodes,collective,total_bytes,time_us[,source][,inter_gbps_per_node]
//
// Column order is free and further columns are ignored. `gpus` counts all ranks, `total_bytes` is
// the gathered size of all_gather, the unreduced size of reduce_scatter, and the tensor of
// all_reduce and broadcast. Missing columns, words and numbers that make no sense are Errors that
// name file, line and column.

struct GemmRow {
  std::string gpu;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  double time_s = 0;
  std::size_t line = 0;
};

struct CollectiveRow {
  std::string gpu;
  std::int64_t ranks = 0;
  std::int64_t nodes = 1;
  Collective collective = Collective::kAllGather;
  double bytes = 0;
  double time_s = 0;
  double inter_bytes_per_s = 0;  ///< line rate of a node's NICs; 0: not given
  std::size_t line = 0;
};

std::vector<GemmRow> read_gemm_table(const CsvTable& table);
std::vector<CollectiveRow> read_collective_table(const CsvTable& table);

/// Training products: m >= 2048 and n, k >= 1024. Smaller ones are launch-bound.
bool is_training_size(const GemmRow& row);

/// For every row, whether the table itself contradicts it: another product of the same GPU, at
/// least as large in m, n and k, took less than 1/1.1 of its time. More work cannot take less
/// time, so the measurement was disturbed. Says nothing about any model's error.
std::vector<bool> contradicted_rows(const std::vector<GemmRow>& rows);

struct KernelError {
  std::size_t line = 0;  ///< in the table
  std::string gpu;
  std::string what;  ///< "4096x4096x4096", "all_gather 8x1 1048576"
  double predicted_s = 0;
  double measured_s = 0;
  double error = 0;            ///< |predicted / measured - 1|
  bool training_size = false;  ///< products only
  bool contradicted = false;   ///< products only
};

struct GroupScore {
  profiles::ErrorSummary all;
  std::map<std::string, profiles::ErrorSummary> by_gpu;
};

struct KernelScore {
  std::vector<KernelError> rows;
  GroupScore all;
  GroupScore training_size;             ///< products with m >= 2048 and n, k >= 1024
  GroupScore training_size_consistent;  ///< those without the contradicted rows
};

/// Throws Error for a missing column, a bad number, an unknown GPU, and for a collective across
/// nodes when neither the table nor the GPU says what joins them.
KernelScore score_gemm(const CsvTable& table, const profiles::GpuCosts& costs);
KernelScore score_collectives(const CsvTable& table, const profiles::GpuCosts& costs);

double predicted_time_s(const GemmRow& row, const profiles::GemmParams& params,
                        const profiles::GpuRates& gpu);
double predicted_time_s(const CollectiveRow& row, const profiles::CollectiveParams& params);

}  // namespace shardwright::sim
