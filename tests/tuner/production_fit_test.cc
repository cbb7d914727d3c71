// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/production_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "sim/core/base/error.h"

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
  for (const double width : production.half_widths)
    EXPECT_NEAR(width, std::log(1.25) * 40 / 39, 1e-9);
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
  EXPECT_LE(std::exp(production.half_widths[0] + production.half_widths[1]), kWidestInterval);
  EXPECT_LT(production.family_out.inside, production.family_out.n);
}

// Small models in large jobs took exp(0.1 x smallness) times longer: the slope is found, and the
// ends of the interval are those of the rests, which lie on one side more than on the other.
TEST(ProductionFit, FindsTheSlopeOfSmallModelsAndEndsThatDiffer) {
  Production production;
  for (int i = 0; i < 30; ++i) {
    const double parameters = i % 3 == 0 ? 7e10 : 2e9 * (1 + i % 5);
    const double hours = 1e4 * (1 + i * i);
    const double rest = i % 10 == 0 ? 0.5 : -0.05;
    const double ratio = std::exp(0.2 + 0.1 * profiles::small_in_large(parameters, hours) + rest);
    const std::string name = "f" + std::to_string(i);
    production.runs.push_back({name, name, parameters, 1e15, hours, 0.1, hours * ratio});
  }
  fit_production(production);
  EXPECT_NEAR(production.small_model, 0.1, 0.03);
  EXPECT_NEAR(production.log_factor, 0.2, 0.1);
  EXPECT_NE(production.half_widths[0], production.half_widths[1]);
  EXPECT_GE(production.in_sample.inside, 27);
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
