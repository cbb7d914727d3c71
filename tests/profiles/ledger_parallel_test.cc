// SPDX-License-Identifier: Apache-2.0
// The columns of runs that divided their models: every shipped row reads, and wrong ones are named.
#include "profiles/ledger/ledger_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "profiles/data_dir.h"
#include "sim/core/base/read_file.h"

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

TEST(LedgerParallel, RowsSayTheirParallelLayout) {
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

TEST(LedgerParallel, ReleasesTakeThePresetThatFitsThemBest) {
  const auto preset = [](const std::string& version) {
    return load_preset("megatron-core", version).stack.id;
  };
  EXPECT_EQ(preset("NeMo 24.07 with vboost"), "megatron-core-nemo-24");
  EXPECT_EQ(preset("NeMo 24.03"), "megatron-core-nemo-24.03");
  EXPECT_EQ(preset("25.05"), "megatron-core-nemo");
  EXPECT_EQ(preset("NeMo 26.06"), "megatron-core-nemo-26.06");
  EXPECT_EQ(preset("NeMo 26.06.01"), "megatron-core-nemo-26.06.01");
  EXPECT_EQ(preset("TE 2.11, torch 2.10"), "megatron-core");
  EXPECT_EQ(preset(""), "megatron-core");
  for (const char* name : {"megatron-core-nemo-26.06", "nemo-mlperf"}) {
    EXPECT_EQ(load_stack(name).stack.family, "megatron-core") << name;
  }
  EXPECT_EQ(load_preset("megatron-core", "NeMo 26.06.01").stack.family, "megatron-core");
  for (const char* name : {"megatron-core", "aleph-alpha", "nanotron", "maxtext", "paxml"}) {
    EXPECT_EQ(load_stack(name).stack.family, name) << "no preset of its base";
  }
}

TEST(LedgerParallel, WhatPyTorchHasSinceAMonthHoldsForEagerSoftwareOfLaterOnes) {
  const auto preset = [](const std::string& version) {
    return load_preset("torch-eager", version).stack.id;
  };
  EXPECT_EQ(preset("2025-11"), "torch-eager-2025-11");
  EXPECT_EQ(preset("somebody's trainer 2026-08"), "torch-eager-2025-11");
  EXPECT_EQ(preset("torchtitan 2025-10"), "torch-eager");
  EXPECT_EQ(preset("torchtitan 2025-03"), "torch-eager-2025-03");
  EXPECT_EQ(preset("torchtitan after 2024-10-22"), "torch-eager");
  EXPECT_EQ(preset("2026"), "torch-eager") << "no month";
  EXPECT_EQ(load_preset("torch-compile", "somebody's trainer 2026-08").stack.id, "torch-compile");
}

TEST(LedgerParallel, WhatRowsLeaveOutTheirSoftwareSays) {
  const LedgerRow nemo = row_of("p0101");  // fp8, delayed; says neither
  EXPECT_EQ(nemo.plan.reduce_dtype, DType::kBf16);
  EXPECT_TRUE(nemo.plan.numerics.fp8_params);
  EXPECT_TRUE(row_of("p1175").plan.numerics.fp8_params) << "a later preset";
  const LedgerRow wide = row_of("p0096");  // bf16
  EXPECT_FALSE(wide.plan.numerics.fp8_params);
  const LedgerRow block = row_of("p1379");  // block scales
  EXPECT_FALSE(block.plan.numerics.fp8_params);
  const LedgerRow other = row_of("p1004");  // says fp32, of no release that is known
  EXPECT_EQ(other.plan.reduce_dtype, DType::kFp32);
  const LedgerRow pax = row_of("p0091");
  EXPECT_EQ(pax.plan.recompute, Recompute::kFull);
  EXPECT_EQ(pax.plan.ckpt_layers, pax.model.layers);
}

TEST(LedgerParallel, RecipesOfDeepSeekNameADispatcherUnlessTokensAreDropped) {
  const LedgerRow dropless = row_of("p1379");  // says neither dispatcher nor recomputation
  EXPECT_EQ(dropless.plan.parallel.dispatcher, Dispatcher::kDeepEp);
  EXPECT_EQ(recompute_name(dropless.plan), "mla_up_proj");
  const LedgerRow dropped = row_of("p1371");
  EXPECT_EQ(dropped.plan.parallel.dispatcher, std::nullopt);
  EXPECT_EQ(recompute_name(dropped.plan), "mla_up_proj");
  const LedgerRow other = row_of("p1318");  // Qwen3-30B
  EXPECT_EQ(other.plan.parallel.dispatcher, std::nullopt);
  EXPECT_EQ(other.plan.recompute, Recompute::kNone);
  EXPECT_EQ(row_of("p1158").plan.parallel.dispatcher, Dispatcher::kHybridEp) << "says so";
  // DeepEP does not run across the trays of an NVL72 rack.
  EXPECT_EQ(row_of("p1337").plan.parallel.dispatcher, Dispatcher::kHybridEp);
  EXPECT_EQ(row_of("p1340").plan.parallel.dispatcher, Dispatcher::kHybridEp) << "Qwen3-235B";
  EXPECT_EQ(row_of("p1338").plan.parallel.dispatcher, std::nullopt) << "GPT-OSS-120B";
}

TEST(LedgerParallel, RowsWithWordsOfLaterVersionsSaySoAndLeaveTheOthers) {
  const std::string known = table_of("p1074");
  const std::vector<std::pair<std::string, std::string>> words = {
      {"pp_schedule", "interleaved"}, {"attention", "flash"}, {"mlp", "swiglu"}, {"outcome", "ok"}};
  for (const auto& [column, word] : words) {
    std::string text = known;
    const std::size_t at = text.find("," + word + ",", text.find('\n'));
    ASSERT_NE(at, std::string::npos) << column;
    text.replace(at, word.size() + 2, ",backwards,");
    const std::vector<LedgerRow> rows = read_ledger(CsvTable::parse(text, "rows.csv"));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows.front().unsupported, column + " is backwards, which is not known");
  }
}

TEST(LedgerParallel, OneChunkAStageIsNotInterleaved) {
  const LedgerRow row = row_of("p1140");  // interleaved, but how many chunks is not published
  EXPECT_EQ(row.unsupported, "");
  EXPECT_EQ(row.plan.parallel.schedule(), PipelineKind::kOneForwardOneBackward);
  EXPECT_EQ(row_of("p1074").plan.parallel.schedule(), PipelineKind::kInterleaved);
}

}  // namespace
}  // namespace shardwright::profiles
