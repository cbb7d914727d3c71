// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/whole_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "profiles/data_file.h"
#include "profiles/operations.h"
#include "profiles/uncertainty/production.h"
#include "sim/core/base/error.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;

const std::string kHead =
    "id,family,model,layers,hidden,heads,kv_heads,head_dim,ffn,mlp,vocab,tied,parallel_block,"
    "experts,params_active,params_active_published,params_total_published,params_total,"
    "params_matmul_active,tokens,seq_len,global_batch_tokens,gpu,peak_tflops,gpus,gpu_hours,tp,pp,"
    "ep,micro_batch,sharding,recompute,software,steady_mfu_6n,tier,source\n";

std::vector<WholeRun> read(const std::string& rows) {
  return read_whole_runs(CsvTable::parse(kHead + rows, "runs.csv"));
}

std::string row(const std::string& tokens, const std::string& hours, const std::string& tp) {
  return "a,fam,A,2,128,2,2,64,512,swiglu,1000,no,,,6e5,,,6e5,5e5," + tokens +
         ",1024,,h100-80g-sxm,989.4,64," + hours + "," + tp + ",,,,ZeRO-1,full,Megatron,0.4,B,x\n";
}

TEST(WholeRuns, TheShippedTableIsRead) {
  const std::vector<WholeRun> runs = load_whole_runs(shipped_whole_runs());
  EXPECT_EQ(runs.size(), 60U);
  std::map<char, int> tiers;
  for (const WholeRun& run : runs) {
    ++tiers[run.tier];
    EXPECT_EQ(run.not_scorable, "") << run.id;
    if (!run.scored() || !run.model) continue;
    // Counted from the shape, within what norms, biases and learned positions add.
    const auto counted =
        static_cast<double>(count_parameters(*run.model).active(run.model->layers));
    EXPECT_NEAR(counted / run.parameters, 1, 0.005) << run.id;
  }
  EXPECT_EQ(tiers['A'], 13);
  EXPECT_EQ(tiers['B'], 30);
}

// 6 x 6,738,149,376 x 2e12 / (184,320 h x 3600 s x 312e12) = 0.3906: its implied_mfu_6n.
TEST(WholeRuns, TheShareOfThePeakByHand) {
  for (const WholeRun& run : load_whole_runs(shipped_whole_runs())) {
    if (run.id != "llama-2-7b") continue;
    EXPECT_NEAR(run.whole_mfu, 0.3906, 5e-5);
    return;
  }
  ADD_FAILURE() << "llama-2-7b is not there";
}

TEST(WholeRuns, WhatIsMissingIsSaidAndWhatIsWrongIsAnError) {
  EXPECT_THAT(read(row("", "100", "")).front().not_scorable, HasSubstr("tokens"));
  EXPECT_THAT(read(row("1e9", "", "")).front().not_scorable, HasSubstr("GPU hours"));
  EXPECT_FALSE(read(row("", "100", "")).front().scored());
  const WholeRun run = read(row("1e9", "100", "\"8 (virtual)\"")).front();
  EXPECT_EQ(run.tensor, 8);
  EXPECT_FALSE(run.data_parallel());
  EXPECT_TRUE(run.scored());
  for (const std::string& bad : {row("many", "100", ""), row("-1", "100", "")}) {
    try {
      read(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("runs.csv, line 2, column tokens"));
    }
  }
  EXPECT_THROW(read(row("1e9", "1", "") + row("1e9", "1", "")), Error);  // the same id twice
  EXPECT_THROW(read(""), Error);
}

// The rates that failures.csv gives as plain numbers; a span counts by its geometric middle.
TEST(WholeRuns, TheShippedInterruptionsAreThoseThatOperatorsReport) {
  const CsvTable table = CsvTable::load(data_dir() / "published" / "failures.csv");
  const Operations operations = load_operations();
  double sum = 0;
  int n = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    double low = 0, high = 0;
    const std::string text(table[i].text("gpu_hours_per_interruption"));
    const int found = std::sscanf(text.c_str(), "%lf-%lf", &low, &high);
    if (found < 1 || low < 1000) continue;
    EXPECT_GE(low, operations.least_mtbf_gpu_hours);
    EXPECT_LE(found == 2 ? high : low, operations.most_mtbf_gpu_hours);
    sum += std::log(found == 2 ? std::sqrt(low * high) : low);
    ++n;
  }
  EXPECT_GE(n, 6);
  EXPECT_NEAR(operations.mtbf_gpu_hours / std::exp(sum / n), 1, 0.1);
}

TEST(Production, TheFileSurvivesWritingAndReading) {
  const Production shipped = load_production();
  ASSERT_TRUE(shipped.known());
  EXPECT_GE(shipped.family_out.inside, 0.8 * static_cast<double>(shipped.family_out.n));
  EXPECT_LE(std::exp(shipped.half_widths[0] + shipped.half_widths[1]), 3);
  EXPECT_FALSE(shipped.source.empty());
  EXPECT_EQ(shipped.command, "shardwright_fit whole-runs");
}

TEST(Production, TheStepsOwnIntervalTakesThePlaceOfTheTypicalOne) {
  Production production;
  production.level = 0.9;  // as steps have it
  production.log_factor = std::log(1.5);
  production.half_widths = {0.4, 0.5};
  production.step_half_width = 0.3;
  production.parameters_range = {1e9, 1e11};
  production.peak_range = {1e14, 1e15};
  const auto of = [&](double parameters, double peak, double step) {
    return factor_of(production, parameters, peak, 1e4, step);
  };
  EXPECT_NEAR(of(1e10, 3e14, 0.3).half_widths[1], 0.5, 1e-12);
  EXPECT_NEAR(of(1e10, 3e14, 0.1).half_widths[1], std::sqrt(0.25 - 0.09 + 0.01), 1e-12);
  EXPECT_NEAR(of(1e10, 3e14, 0.1).half_widths[0], std::sqrt(0.16 - 0.09 + 0.01), 1e-12);
  EXPECT_NEAR(of(1e10, 3e14, 0).half_widths[1], 0.5, 1e-12);
  EXPECT_NEAR(of(1e10, 3e14, 0).middle, 1.5, 1e-12);
  EXPECT_FALSE(of(1e10, 3e14, 0).beyond_fit);
  EXPECT_TRUE(of(1e10, 2e15, 0).beyond_fit);
  EXPECT_TRUE(of(1e12, 3e14, 0).beyond_fit);
  // 1.960 standard deviations hold 95 %, 1.645 hold 90 %.
  production.level = 0.95;
  EXPECT_NEAR(normal_half_width(0.95), 1.960, 1e-3);
  const double wider = 1.95996 / 1.64485;
  EXPECT_NEAR(of(1e10, 3e14, 0.3).half_widths[1], 0.5, 1e-12);
  EXPECT_NEAR(of(1e10, 3e14, 0.1).half_widths[1], std::sqrt(0.25 - wider * wider * (0.09 - 0.01)),
              1e-5);
  EXPECT_EQ(factor_of({}, 1e10, 3e14, 1e4, 0.1).middle, 1);
}

// Rests of published trainings hold what a stranger's step is off by.
TEST(Production, OnlyWhatElseIsNewAboutAStepAddsToWholeRuns) {
  Production production;
  production.half_widths = {0.4, 0.5};
  production.step_half_width = 0.1;
  AddedWidths added{};
  at(added, WidthAxis::kSource) = 0.2;
  at(added, WidthAxis::kRouting) = 0.2;
  EXPECT_DOUBLE_EQ(step_half_width_of(production, total_of(added), added), 0.1);
  at(added, WidthAxis::kGpu) = 0.3;
  EXPECT_DOUBLE_EQ(step_half_width_of(production, total_of(added), added), std::sqrt(0.01 + 0.09));
  EXPECT_DOUBLE_EQ(step_half_width_of(production, 0.05, added), 0.05) << "a measured step";
  EXPECT_DOUBLE_EQ(step_half_width_of(production, 0.3, {}), 0.3) << "of which nothing is known";
}

// A small model that takes many hours is trained on many GPUs; a large one is not small, and a
// small job is not large.
TEST(Production, SmallModelsInLargeJobsTakeLonger) {
  Production production;
  production.log_factor = std::log(1.2);
  production.small_model = 0.05;
  production.half_widths = {0.4, 0.5};
  const auto middle = [&](double parameters, double hours) {
    return factor_of(production, parameters, 9.9e14, hours, 0.1).middle;
  };
  EXPECT_NEAR(middle(8e9, 5.5e5),
              1.2 * std::exp(0.05 * std::log(5.5e5 / 3e4) * std::log(4e10 / 8e9)), 1e-9);
  EXPECT_NEAR(middle(8e9, 1e4), 1.2, 1e-12);
  EXPECT_NEAR(middle(7e10, 5e6), 1.2, 1e-12);
}

}  // namespace
}  // namespace shardwright::profiles
