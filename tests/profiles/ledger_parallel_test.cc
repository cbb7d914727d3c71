// SPDX-License-Identifier: Apache-2.0
// The columns of runs that divided their models: every shipped row reads, and wrong ones are named.
#include "profiles/ledger_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "profiles/data_dir.h"
#include "sim/core/error.h"
#include "sim/core/read_file.h"

namespace shardwright::profiles {
namespace {

std::string shipped_text() {
  return read_file(data_dir() / "published" / "parallel.csv", std::size_t{16} << 20);
}

/// The header and the row of `id`.
std::string table_of(const std::string& id) {
  const std::string text = shipped_text();
  const std::size_t row = text.find("\n" + id + ",") + 1;
  return text.substr(0, text.find('\n') + 1) + text.substr(row, text.find('\n', row) - row) + "\n";
}

LedgerRow row_of(const std::string& id) {
  return read_ledger(CsvTable::parse(table_of(id), "rows.csv")).front();
}

TEST(LedgerParallel, EveryShippedRowReads) {
  const auto rows = load_ledger(data_dir() / "published" / "parallel.csv");
  EXPECT_EQ(rows.size(), 754U);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const LedgerRow& row) { return row.out_of_memory; }),
            154);
  for (const LedgerRow& row : rows) {
    EXPECT_EQ(row.plan.gpus % row.plan.parallel.replica(), 0) << row.id;
    EXPECT_FALSE(row.quality.empty()) << row.id;
  }
}

TEST(LedgerParallel, RowsSayHowTheModelIsDivided) {
  const LedgerRow row = row_of("p1074");
  EXPECT_EQ(row.plan.parallel.tp, 4);
  EXPECT_EQ(row.plan.parallel.pp, 8);
  EXPECT_EQ(row.plan.parallel.virtual_stages, 8);
  EXPECT_EQ(row.plan.parallel.cp, 2);
  EXPECT_EQ(row.plan.parallel.schedule(), PipelineKind::kInterleaved);
  EXPECT_EQ(row.plan.strategy, Strategy::kDistributedOptimizer);
  const ClusterFile cluster = cluster_of(row);
  EXPECT_EQ(cluster.cluster.gpus_per_node, 4);
  EXPECT_EQ(cluster.cluster.nvlink_domain, 72) << "a tray of a rack that NVLink joins";
}

TEST(LedgerParallel, MachinesWithTablesOfTheirOwnTakeThem) {
  const ClusterFile cluster = cluster_of(row_of("p1004"));
  EXPECT_EQ(cluster.cluster.id, "simumax-b200");
  EXPECT_FALSE(cluster.measured_products.empty());
  EXPECT_TRUE(published_machine("somebody else", "b200").empty());
}

TEST(LedgerParallel, SoftwareThatDoesNotShipHasAStandIn) {
  EXPECT_EQ(shipped_stack("megatron-core"), "megatron-core");
  EXPECT_EQ(shipped_stack("meta"), "megatron-core");
  EXPECT_EQ(shipped_stack("hai-llm"), "megatron-core");
  EXPECT_EQ(shipped_stack("nobody's"), "");
  EXPECT_EQ(row_of("p1148").stack_called, "megatron-lm");
}

TEST(LedgerParallel, WrongWordsAreNamed) {
  std::string text = table_of("p1074");
  const std::size_t at = text.find(",interleaved,");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 13, ",backwards,");
  try {
    read_ledger(CsvTable::parse(text, "rows.csv"));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("pp_schedule"), std::string::npos) << what;
    EXPECT_NE(what.find("backwards"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace shardwright::profiles
