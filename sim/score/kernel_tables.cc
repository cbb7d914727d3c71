// SPDX-License-Identifier: Apache-2.0
#include "sim/score/kernel_tables.h"

#include <array>

namespace shardwright::sim {
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
  for (const auto collective : {Collective::kAllGather, Collective::kReduceScatter,
                                Collective::kAllReduce, Collective::kBroadcast})
    if (row.text("collective") == name_of(collective)) return collective;
  row.fail("collective", "all_gather, reduce_scatter, all_reduce or broadcast");
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

}  // namespace shardwright::sim
