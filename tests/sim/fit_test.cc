// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "profiles/data_dir.h"
#include "sim/core/base/error.h"
#include "sim/cost/gemm_cost.h"
#include "sim/fit/fit_attention.h"
#include "sim/fit/fit_collectives.h"
#include "sim/fit/fit_gemm.h"
#include "sim/fit/held_out.h"
#include "sim/fit/minimize.h"
#include "sim/score/score_kernels.h"
#include "tests/support/not_empty.h"

namespace shardwright::sim {
namespace {

TEST(Minimize, FindsTheMinimumOfACurvedValley) {
  const auto rosenbrock = [](const std::vector<double>& x) {
    return std::pow(1 - x[0], 2) + 100 * std::pow(x[1] - x[0] * x[0], 2);
  };
  const Minimum found = minimize_positive(rosenbrock, {0.1, 5});
  EXPECT_NEAR(found.at[0], 1, 1e-3);
  EXPECT_NEAR(found.at[1], 1, 2e-3);
  EXPECT_LE(found.evaluations, 20000 + 3);
}

TEST(Minimize, CopesWithKinksInManyDimensions) {
  const auto kinked = [](const std::vector<double>& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      sum += std::abs(std::log(x[i] / static_cast<double>(i + 1)));
    return sum;
  };
  const Minimum found =
      minimize_positive(kinked, std::vector<double>(8, 2.0), {.max_evaluations = 40000});
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(found.at[i] / static_cast<double>(i + 1), 1, 0.02);
}

TEST(HeldOut, FoldsAreBalancedAndFixed) {
  std::array<int, kFolds> count{};
  for (std::int64_t m = 1; m <= 40; ++m)
    for (std::int64_t n = 1; n <= 25; ++n) ++count[fold_of({64 * m, 64 * n})];
  for (const int c : count) EXPECT_NEAR(c, 200, 45);
  EXPECT_EQ(fold_of({4096, 4096, 4096}), fold_of({4096, 4096, 4096}));
}

TEST(HeldOut, NoRowIsPredictedByAFitThatSawIt) {
  struct Row {
    std::int64_t id;
    double time_s;
  };
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < 50; ++i) rows.push_back({i, 1.0});
  const auto errors = held_out_errors(
      rows, [](const std::vector<Row>& training) { return training; },
      [](const Row& row, const std::vector<Row>& training) {
        for (const Row& seen : not_empty(training))
          if (seen.id == row.id) return 100.0;
        return 1.0;
      },
      [](const Row& row) { return fold_of({row.id}); });
  for (const double error : not_empty(errors)) EXPECT_EQ(error, 0);
}

// A planted model with 3 % noise and some rows three times too slow.
TEST(FitGemm, RecoversPlantedParametersThroughDisturbedRows) {
  const profiles::GpuRates gpu{
      .peak_flops = 300e12, .sm_count = 100, .hbm_bytes_per_s = 2e12, .hbm_efficiency = 0.8};
  profiles::GemmParams planted;
  planted.e = 0.9;
  planted.k0 = 180;
  planted.w = 0.8;
  planted.s = 0.2;
  planted.t0_s = 3e-6;
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 0.03);
  std::vector<GemmRow> rows;
  for (const std::int64_t m : {1024, 2048, 3072, 4096, 8192})
    for (const std::int64_t n : {512, 1024, 1536, 2048, 4096, 5120, 8192})
      for (const std::int64_t k : {512, 1024, 2048, 4096, 8192}) {
        const double disturbed = random() % 20 == 0 ? 3 : 1;
        const double t = gemm_time_s(planted, gpu, m, n, k, gpu.sm_count);
        rows.push_back({"x", m, n, k, t * disturbed * std::exp(noise(random)), 0});
      }
  const GemmFit fit = fit_gemm(rows, gpu, planted);
  EXPECT_NEAR(fit.params.e / planted.e, 1, 0.04);
  EXPECT_NEAR(fit.params.k0 / planted.k0, 1, 0.15);
  EXPECT_LE(fit.held_out.median, 0.04);
  for (const std::int64_t size : {2304, 3584, 6144, 12288}) {
    const double expected = gemm_time_s(planted, gpu, size, 2816, size, gpu.sm_count);
    EXPECT_NEAR(gemm_time_s(fit.params, gpu, size, 2816, size, gpu.sm_count) / expected, 1, 0.04);
  }
  EXPECT_EQ(fit.params.sustained_factor, planted.sustained_factor);
}

std::vector<CollectiveRow> published_collectives(const std::string& gpu, double most_bytes,
                                                 std::int64_t most_ranks) {
  std::vector<CollectiveRow> rows;
  for (const CollectiveRow& row : read_collective_table(
           CsvTable::load(profiles::data_dir() / "published" / "collectives.csv")))
    if (row.gpu == gpu && row.bytes <= most_bytes && row.ranks <= most_ranks) rows.push_back(row);
  return rows;
}

// Sharper than random folds: messages up to 64 MiB foretell those up to 512 MiB.
TEST(FitCollectives, SmallMessagesForetellLargeOnes) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  for (const char* gpu : {"a100-80g", "b200"}) {
    const CollectiveFit fit = fit_collectives(published_collectives(gpu, 64.0 * (1 << 20), 8),
                                              costs.at(gpu).collectives.values);
    double sum = 0;
    int count = 0;
    for (const CollectiveRow& row : not_empty(published_collectives(gpu, 1e18, 8))) {
      if (row.bytes <= 64.0 * (1 << 20)) continue;
      sum += std::abs(predicted_time_s(row, fit.params) / row.time_s - 1);
      ++count;
    }
    EXPECT_EQ(count, 18);
    EXPECT_LE(sum / count, 0.08) << gpu;
  }
}

TEST(FitCollectives, NeedsEnoughRowsOfOneNode) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  const profiles::CollectiveParams& start = costs.at("a100-80g").collectives.values;
  std::vector<CollectiveRow> rows = published_collectives("a100-80g", 1e4, 2);
  EXPECT_THROW(fit_collectives(rows, start), Error);
  rows = published_collectives("a100-80g", 1e18, 8);
  rows[7].nodes = 2;
  EXPECT_THROW(fit_collectives(rows, start), Error);
}

TEST(FitAttention, SplitsCombinedRowsIntoForwardAndBackward) {
  profiles::AttentionParams planted{
      .forward_flops = 600e12, .forward_s0 = 700, .backward_flops = 500e12, .backward_s0 = 1100};
  std::vector<AttentionRow> rows;
  for (const double s : {512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0}) {
    const double forward = 600e12 * s / (s + 700);
    const double backward = 500e12 * s / (s + 1100);
    rows.push_back({"x", "fa2", AttentionPass::kForward, s, forward});
    rows.push_back({"x", "fa2", AttentionPass::kBoth, s, 3.5 / (1 / forward + 2.5 / backward)});
  }
  const AttentionFit fit = fit_attention(rows, planted);
  EXPECT_TRUE(fit.forward_fitted && fit.backward_fitted);
  EXPECT_NEAR(fit.params.forward_flops / 600e12, 1, 0.01);
  EXPECT_NEAR(fit.params.backward_flops / 500e12, 1, 0.02);
  EXPECT_LE(fit.held_out.mape, 0.02);
}

TEST(FitAttention, LeavesAPassWithTooFewRowsAlone) {
  profiles::AttentionParams start{
      .forward_flops = 600e12, .forward_s0 = 700, .backward_flops = 500e12, .backward_s0 = 1100};
  const std::vector<AttentionRow> rows(3, {"x", "fa2", AttentionPass::kForward, 4096, 1e12});
  const AttentionFit fit = fit_attention(rows, start);
  EXPECT_FALSE(fit.forward_fitted);
  EXPECT_EQ(fit.params.forward_flops, 600e12);
  EXPECT_EQ(fit.held_out.n, 0);
}

}  // namespace
}  // namespace shardwright::sim
