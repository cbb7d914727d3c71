// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/conformal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "profiles/profile.h"
#include "sim/uncertainty/memory_uncertainty.h"

namespace shardwright::sim {
namespace {

using profiles::HeldOutRun;
using profiles::Novelty;
using profiles::Uncertainty;

HeldOutRun run(const std::string& source, const std::string& model, double error,
               const std::string& gpu = "gpu") {
  HeldOutRun made;
  made.id = "id";
  made.source = source;
  made.stack = "eager";
  made.gpu = gpu;
  made.model = model;
  made.log_error = error;
  made.log_error_cell_out = 2 * error;
  made.log_error_source_out = 3 * error;
  return made;
}

double width(const Uncertainty& u, Novelty novelty) {
  return u.widths.at(static_cast<std::size_t>(novelty)).half_width;
}

/// Cells of one run each.
std::vector<CellError> apart(const std::vector<double>& errors) {
  std::vector<CellError> cells;
  for (std::size_t i = 0; i < errors.size(); ++i) cells.push_back({std::to_string(i), errors[i]});
  return cells;
}

TEST(Conformal, TakesTheFiniteSampleQuantile) {
  std::vector<double> errors;
  for (int i = 19; i >= 1; --i) errors.push_back(i);
  EXPECT_EQ(conformal_half_width(apart(errors), 0.9), 18);  // ceil(20 * 0.9) of 19
  EXPECT_EQ(conformal_half_width(apart(errors), 0.95), 19);
  EXPECT_EQ(conformal_half_width(apart(errors), 0.96), 19 * kBeyond);
  EXPECT_EQ(conformal_half_width(std::vector<CellError>{}, 0.9), 0);
  EXPECT_EQ(conformal_half_width(errors, 0.9), 18);
  EXPECT_EQ(conformal_half_width(errors, 0.96), std::nullopt);
}

// A cell of many runs counts as one.
TEST(Conformal, DrawsACellBeforeARun) {
  std::vector<CellError> errors = apart({0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9});
  for (int i = 0; i < 1000; ++i) errors.push_back({"large", 0.01});
  EXPECT_EQ(conformal_half_width(errors, 0.9), 0.9);  // ten cells and the new one
  EXPECT_EQ(conformal_half_width(errors, 0.5), 0.5);
}

// The promise itself: of runs of new cells, whatever the distributions are, a share of at least the
// level falls inside, and not much more than that.
TEST(Conformal, CoversNewCellsAtTheLevel) {
  std::mt19937 random(11);
  std::cauchy_distribution<double> of_cell(0, 0.02);
  std::normal_distribution<double> of_run(0, 0.02);
  for (const int cells : {19, 60}) {
    int inside = 0;
    constexpr int kDraws = 8000;
    for (int draw = 0; draw < kDraws; ++draw) {
      std::vector<CellError> errors;
      for (int c = 0; c < cells; ++c) {
        const double shared = of_cell(random);
        for (int i = 0; i <= c % 4; ++i)
          errors.push_back({std::to_string(c), std::abs(shared + of_run(random))});
      }
      inside += std::abs(of_cell(random) + of_run(random)) <= conformal_half_width(errors, 0.9);
    }
    const double covered = static_cast<double>(inside) / kDraws;
    EXPECT_GT(covered, 0.9 - 0.012) << cells;
    EXPECT_LT(covered, 0.9 + 1.0 / (cells + 1) + 0.012) << cells;
  }
}

std::vector<HeldOutRun> some_runs() {
  std::vector<HeldOutRun> runs;
  for (int cell = 0; cell < 20; ++cell) {
    for (int i = 0; i < 3; ++i)
      runs.push_back(run("large", "m" + std::to_string(cell), 0.001 * (cell + 1)));
  }
  for (int i = 0; i < 3; ++i) runs.push_back(run("small" + std::to_string(i), "m", 0.02, "other"));
  return runs;
}

TEST(Intervals, WidenWithNovelty) {
  const Uncertainty u = fit_uncertainty(some_runs(), 0.9);
  ASSERT_EQ(u.widths.size(), 4U);
  EXPECT_GT(width(u, Novelty::kCell), 0.015);  // of 20 cells with several runs, up to 0.02
  EXPECT_LT(width(u, Novelty::kCell), 0.025);
  EXPECT_NEAR(width(u, Novelty::kStackOnGpu), 2 * width(u, Novelty::kCell), 1e-4);  // cell out
  EXPECT_GT(width(u, Novelty::kSourceOnly), width(u, Novelty::kStackOnGpu));
  EXPECT_EQ(u.widths[0].cells, 20);
  EXPECT_EQ(u.widths[2].cells, 23);
  EXPECT_GE(width(u, Novelty::kNothing), width(u, Novelty::kSourceOnly));
}

// A few known cells of which one is far off say little about new sources, of which there are many.
TEST(Intervals, TheQuantileOfFewCellsDoesNotWidenThoseOfMany) {
  std::vector<HeldOutRun> runs;
  for (int cell = 0; cell < 30; ++cell) {
    runs.push_back(run("s" + std::to_string(cell), "m", 0.002 * (cell % 10 + 1), "own"));
    runs.back().gpu = "gpu " + std::to_string(cell / 2);
  }
  for (int cell = 0; cell < 5; ++cell) {
    for (int i = 0; i < 2; ++i)
      runs.push_back(run("table", "m" + std::to_string(cell), cell == 0 ? 0.06 : 0.002));
  }
  const Uncertainty u = fit_uncertainty(runs, 0.9);
  ASSERT_EQ(u.widths[0].cells, 5);
  ASSERT_EQ(u.widths[2].cells, 35);
  EXPECT_LT(width(u, Novelty::kSourceOnly), 0.1);  // 1.25 times 2 times 0.06 of five cells is 0.15
  EXPECT_EQ(width(u, Novelty::kStackOnGpu), width(u, Novelty::kSourceOnly));
  EXPECT_LE(width(u, Novelty::kCell), width(u, Novelty::kStackOnGpu));
}

// Ten sources of ten runs; those of the last need up to a fifth more than was predicted, nobody
// much less.
TEST(MemoryUncertainty, SidesAndSourcesHaveWidthsOfTheirOwn) {
  std::vector<PeakError> errors;
  for (int source = 0; source < 10; ++source) {
    for (int i = 0; i < 10; ++i) {
      const double error = source == 9 ? 0.02 * (i + 1) : 0.002 * (i - 5);
      errors.push_back({std::to_string(10 * source + i), std::to_string(source), "own", error});
    }
  }
  const profiles::MemoryWidths runs = widths_of_runs(errors, 0.9);
  EXPECT_NEAR(runs.more, 0.12, 1e-9);  // the 96th of 101 places
  EXPECT_NEAR(runs.less, 0.01, 1e-9);
  const profiles::MemoryWidths sources = widths_of_sources(errors, 0.9);
  EXPECT_NEAR(sources.more, kBeyond * 0.2, 1e-9);  // ten sources cannot tell a twentieth
  EXPECT_GE(sources.less, runs.less);
  // Without its source nobody knows that such errors exist.
  const MemoryCoverage coverage = memory_coverage(errors, 0.9);
  EXPECT_EQ(coverage.n, 100);
  EXPECT_GE(coverage.run_out, 90);
  EXPECT_LE(coverage.source_out, 91);
}

TEST(MemoryUncertainty, SoftwareThatNobodyMeasuredIsKnownLess) {
  const auto widths = [](const std::string& cluster, const std::string& stack) {
    return memory_widths(profiles::load_profile(cluster, stack));
  };
  const profiles::MemoryWidths measured = widths("dgx-a100-80g", "torch-compile");
  EXPECT_LT(measured.more, widths("dgx-a100-80g", "mpt-eager").more);
  EXPECT_LT(measured.less, widths("dgx-a100-80g", "mpt-eager").less);
  EXPECT_EQ(measured.more, widths("dgx-a100-80g", "torch-compile-2024-05").more);
  EXPECT_EQ(measured.more, widths("dgx-a100-80g", "native").more);  // planned to the byte
}

// Known spreads come back, and the width covers what it says.
TEST(OutlierMixture, FindsItsTwoSpreads) {
  std::mt19937 random(5);
  std::normal_distribution<double> ordinary(0, 0.03), outlying(0, 0.15);
  std::bernoulli_distribution outlies(kOutlierShare);
  std::vector<CellError> errors;
  for (int i = 0; i < 4000; ++i)
    errors.push_back({std::to_string(i), outlies(random) ? outlying(random) : ordinary(random)});
  const OutlierMixture fit = fit_mixture(errors);
  EXPECT_NEAR(fit.ordinary, 0.03, 0.002);
  EXPECT_NEAR(fit.outlying, 0.15, 0.03);
  EXPECT_NEAR(fit.share, kOutlierShare, 0.025);
  for (const double level : {0.5, 0.9, 0.97}) {
    EXPECT_NEAR(fit.covered(fit.half_width(level)), level, 1e-9);
    const auto inside = std::count_if(errors.begin(), errors.end(), [&](const CellError& error) {
      return std::abs(error.error) <= fit.half_width(level);
    });
    EXPECT_NEAR(static_cast<double>(inside) / 4000, level, 0.015);
  }
}

// One far run among many moves the width less than it moves a quantile of few.
TEST(OutlierMixture, AnOutlierHardlyMovesIt) {
  std::vector<CellError> errors;
  for (int i = 1; i <= 40; ++i) errors.push_back({std::to_string(i), 0.001 * i});
  const double without = fit_mixture(errors).half_width(0.9);
  errors.push_back({"far", 0.5});
  EXPECT_LT(fit_mixture(errors).half_width(0.9), 1.2 * without);
  EXPECT_EQ(fit_mixture({}).half_width(0.9), 0);
  EXPECT_EQ(fit_mixture({{"a", 0}, {"b", 0}}).half_width(0.9), 0);
}

TEST(OutlierMixture, RunsThatAgreeCountAsOneCell) {
  std::vector<CellError> errors;
  for (int cell = 0; cell < 30; ++cell) errors.push_back({std::to_string(cell), 0.01 * (cell % 7)});
  const double apart = fit_mixture(errors).half_width(0.9);
  for (int i = 0; i < 300; ++i) errors.push_back({"1", 0.01});
  EXPECT_NEAR(fit_mixture(errors).half_width(0.9), apart, 0.15 * apart);
  EXPECT_GT(error_variances(errors).correlation(), 0.9);
}

TEST(Intervals, TheRuleCoversItsLevelInSimulation) {
  const double covered = simulated_coverage(some_runs(), 0.9);
  EXPECT_GT(covered, 0.88);
  EXPECT_LT(covered, 0.97);
}

TEST(Intervals, LieAroundTheTimeByAFactor) {
  const auto interval = interval_around(2, std::log(1.25));
  EXPECT_NEAR(interval[0], 1.6, 1e-12);
  EXPECT_NEAR(interval[1], 2.5, 1e-12);
  EXPECT_EQ(interval_around(3, 0), (std::array<double, 2>{3, 3}));
}

TEST(Intervals, OfNoRunsHaveNoWidth) {
  const Uncertainty u = fit_uncertainty({}, 0.9);
  EXPECT_FALSE(u.known());
  EXPECT_EQ(half_width(u, Novelty::kCell), 0);
}

}  // namespace
}  // namespace shardwright::sim
