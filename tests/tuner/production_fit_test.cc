// SPDX-License-Identifier: Apache-2.0
#include "tuner/production_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "sim/core/error.h"

namespace shardwright::tuner {
namespace {

using profiles::Production;

void add(Production& production, const std::string& family, int n, double ratio) {
  for (int i = 0; i < n; ++i) {
    const std::string id = family + std::to_string(i);
    production.runs.push_back({id, family, 1e10, 3e14, 100, 0.1, 100 * ratio});
  }
}

TEST(ProductionFit, AFamilyOfNWeighsItsRoot) {
  Production production;
  add(production, "many", 16, std::exp(0.2));
  add(production, "one", 1, std::exp(0.7));
  add(production, "two", 4, std::exp(0.2));
  fit_production(production);
  // (4 x 0.2 + 1 x 0.7 + 2 x 0.2) / 7.
  EXPECT_NEAR(production.log_factor, 1.9 / 7, 1e-12);
  EXPECT_NEAR(production.step_half_width, 0.1, 1e-12);
}

TEST(ProductionFit, TheWidthIsThatOfFamiliesLeftOut) {
  Production production;
  for (int i = 0; i < 40; ++i) add(production, "f" + std::to_string(i), 1, i % 2 ? 1.25 : 1 / 1.25);
  fit_production(production);
  // Without itself, a family is log(1.25) x (1 + 1/39) from the mean of the others.
  EXPECT_NEAR(production.half_width, std::log(1.25) * 40 / 39, 1e-9);
  EXPECT_EQ(production.level, 0.95);
  EXPECT_EQ(production.in_sample.inside, 40);
  EXPECT_GE(production.family_out.inside, 38);
}

TEST(ProductionFit, TheLevelFallsUntilTheIntervalIsOfUse) {
  Production production;
  for (int i = 0; i < 34; ++i) add(production, "f" + std::to_string(i), 1, 1);
  for (int i = 0; i < 6; ++i) add(production, "wild" + std::to_string(i), 1, i % 2 ? 5 : 0.2);
  fit_production(production);
  EXPECT_LT(production.level, 0.85);
  EXPECT_LE(std::exp(2 * production.half_width), kWidestInterval);
  EXPECT_LT(production.family_out.inside, production.family_out.n);
}

TEST(ProductionFit, TwoFamiliesAreTooFew) {
  Production production;
  add(production, "a", 5, 1);
  add(production, "b", 5, 2);
  EXPECT_THROW(fit_production(production), Error);
}

TEST(ProductionFit, TheAnalyticShareIsTheMedian) {
  EXPECT_NEAR(analytic_mfu_of({0.5, 0.3, 0.4}), 0.4, 1e-12);
}

}  // namespace
}  // namespace shardwright::tuner
