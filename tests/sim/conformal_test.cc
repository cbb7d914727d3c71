// SPDX-License-Identifier: Apache-2.0
#include "sim/doubt/conformal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace shardwright::sim {
namespace {

using profiles::ErrorGroup;
using profiles::HeldOutRun;
using profiles::Regime;
using profiles::Uncertainty;

HeldOutRun run(const std::string& stack, double exposed, double error,
               const std::string& source = "s") {
  return {"id", source, stack, "gpu", exposed, error, 2 * error};
}

const ErrorGroup& group(const Uncertainty& u, const std::string& stack, Regime regime) {
  for (const ErrorGroup& g : u.groups) {
    if (g.stack == stack && g.regime == regime) return g;
  }
  ADD_FAILURE() << "no group " << stack;
  return u.groups.front();
}

TEST(Conformal, TakesTheFiniteSampleQuantile) {
  std::vector<double> errors;
  for (int i = 19; i >= 1; --i) errors.push_back(i);
  EXPECT_EQ(conformal_half_width(errors, 0.9), 18);  // ceil(20 * 0.9) of 19
  EXPECT_EQ(conformal_half_width(errors, 0.95), 19);
  EXPECT_EQ(conformal_half_width(errors, 0.96), std::nullopt);
  errors.resize(9);
  EXPECT_EQ(conformal_half_width(errors, 0.9), 19);  // the largest of 9
  errors.resize(8);
  EXPECT_EQ(conformal_half_width(errors, 0.9), std::nullopt);
  EXPECT_EQ(conformal_half_width({}, 0.9), std::nullopt);
}

// The promise itself: of new errors from the same distribution, whatever it is, a share of at least
// the level falls inside, and not much more than that.
TEST(Conformal, CoversNewErrorsAtTheLevel) {
  std::mt19937 random(11);
  std::cauchy_distribution<double> heavy(0, 0.02);
  for (const int n : {9, 19, 60}) {
    int inside = 0;
    constexpr int kDraws = 20000;
    for (int draw = 0; draw < kDraws; ++draw) {
      std::vector<double> errors;
      for (int i = 0; i < n; ++i) errors.push_back(std::abs(heavy(random)));
      inside += std::abs(heavy(random)) <= *conformal_half_width(errors, 0.9);
    }
    const double covered = static_cast<double>(inside) / kDraws;
    EXPECT_GT(covered, 0.9 - 0.008) << n;
    EXPECT_LT(covered, 0.9 + 1.0 / (n + 1) + 0.008) << n;
  }
}

TEST(Intervals, AGroupOfEnoughRunsSpeaksForItself) {
  std::vector<HeldOutRun> runs;
  for (int i = 1; i <= 20; ++i) {
    runs.push_back(run("eager", 0, i % 2 == 0 ? 0.01 * i : -0.01 * i));
    runs.push_back(run("eager", 0.5, 0.001 * i));
  }
  const Uncertainty u = fit_uncertainty(runs, 0.9, 0.1);
  EXPECT_DOUBLE_EQ(group(u, "eager", Regime::kComputeBound).half_width, 0.19);
  EXPECT_DOUBLE_EQ(group(u, "eager", Regime::kCommunicationBound).half_width, 0.019);
  EXPECT_EQ(group(u, "eager", Regime::kComputeBound).n, 20);
  EXPECT_DOUBLE_EQ(half_width(u, "eager", true, 0.05), 0.19);
  EXPECT_DOUBLE_EQ(half_width(u, "eager", true, 0.1), 0.019);  // the boundary belongs above
}

TEST(Intervals, SmallGroupsArePooledButKeepTheirOwnWorst) {
  std::vector<HeldOutRun> runs;
  for (int i = 1; i <= 40; ++i) runs.push_back(run("many", 0, 0.001 * i));
  runs.push_back(run("few", 0, 0.01));
  runs.push_back(run("few", 0, -0.2));
  const Uncertainty u = fit_uncertainty(runs, 0.9, 0.1);
  const ErrorGroup& few = group(u, "few", Regime::kComputeBound);
  EXPECT_EQ(few.n, 2);
  EXPECT_EQ(few.pool, "this regime");
  EXPECT_EQ(few.pool_n, 42);
  EXPECT_DOUBLE_EQ(few.half_width, 0.2);
  // A regime that the stack never ran in takes the stack's errors.
  EXPECT_EQ(group(u, "many", Regime::kCommunicationBound).pool, "this stack");
  EXPECT_DOUBLE_EQ(group(u, "many", Regime::kCommunicationBound).half_width, 0.037);
}

TEST(Intervals, WhatNobodyRanTakesTheErrorsOfLeftOutSources) {
  std::vector<HeldOutRun> runs;
  for (int i = 1; i <= 40; ++i) runs.push_back(run("many", 0, 0.001, "large"));
  for (const char* small : {"a", "b", "c"}) runs.push_back(run("many", 0, 0.05, small));
  const Uncertainty u = fit_uncertainty(runs, 0.9, 0.1);
  EXPECT_EQ(u.elsewhere_sources, 4);
  EXPECT_DOUBLE_EQ(u.elsewhere_half_width, 0.1);  // not 0.002, which 40 of 43 runs have
  EXPECT_DOUBLE_EQ(half_width(u, "new", false, 0), 0.1);
  EXPECT_DOUBLE_EQ(half_width(u, "many", false, 0), 0.1);
  EXPECT_LT(half_width(u, "many", true, 0), 0.1);
}

TEST(Intervals, LieAroundTheTimeByAFactor) {
  const auto interval = interval_around(2, std::log(1.25));
  EXPECT_NEAR(interval[0], 1.6, 1e-12);
  EXPECT_NEAR(interval[1], 2.5, 1e-12);
  EXPECT_EQ(interval_around(3, 0), (std::array<double, 2>{3, 3}));
}

TEST(Intervals, OfNoRunsHaveNoWidth) {
  const Uncertainty u = fit_uncertainty({}, 0.9, 0.1);
  EXPECT_FALSE(u.known());
  EXPECT_EQ(half_width(u, "any", false, 0.3), 0);
}

}  // namespace
}  // namespace shardwright::sim
