// SPDX-License-Identifier: Apache-2.0
// Tables of measured kernels: GEMMs and collectives, as CSV files with one row each.
//
// gemm.csv        gpu,m,n,k,time_us[,source]
// collectives.csv gpu,gpus,nodes,collective,total_bytes,time_us[,source][,inter_gbps_per_node]
//
// Column order is free and further columns are ignored. `gpus` counts all ranks, `total_bytes` is
// the gathered size of all_gather, the unreduced size of reduce_scatter, and the tensor of
// all_reduce and broadcast. Missing columns, words and numbers that make no sense are Errors that
// name file, line and column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/base/csv.h"
#include "sim/cost/collectives.h"

namespace shardwright::sim {

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

}  // namespace shardwright::sim
