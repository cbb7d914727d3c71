// SPDX-License-Identifier: Apache-2.0
// Scores the cost models against tables of measured kernels: what `validate --gemm` and
// `validate --collectives` print.
//
// GEMMs are scored at burst clocks, as benchmarks run them; the sustained factor is for
// training. Every row counts; rows that the table itself contradicts (kernel_tables.h) are also
// left out in a second summary, because no model can be right about both sides.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "sim/score/kernel_tables.h"

namespace shardwright::sim {

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
