// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/robust_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/not_empty.h"

namespace shardwright::sim {
namespace {

/// log of a sum of two costs that share the rows in different proportions, against planted values
/// with noise; some rows are twice as slow for no reason.
struct Planted {
  std::vector<double> truth{std::log(2.0), std::log(0.5)};
  std::vector<double> share;  // of the second cost
  std::vector<double> noise;

  explicit Planted(std::size_t rows, double sigma, std::size_t wrong_rows = 0) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal(0, sigma);
    for (std::size_t i = 0; i < rows; ++i) {
      share.push_back(static_cast<double>(i % 10) / 10);
      noise.push_back(i < wrong_rows ? std::log(2.0) : normal(random));
    }
  }
  double cost(std::size_t i, const std::vector<double>& x) const {
    return std::log((1 - share[i]) * std::exp(x[0]) + share[i] * std::exp(x[1]) + 0.1);
  }
  RobustProblem problem() const {
    RobustProblem p;
    p.rows = share.size();
    p.parameters = {{std::log(0.1), std::log(10.0), std::log(1.0), 1.0},
                    {std::log(0.1), std::log(10.0), std::log(1.0), 1.0}};
    p.residual = [this](std::size_t i, const std::vector<double>& x) {
      return cost(i, x) - cost(i, truth) - noise[i];
    };
    p.sees = [this](std::size_t i, std::size_t j) { return j == 0 || share[i] > 0; };
    p.threads = 1;
    return p;
  }
};

TEST(RobustFit, RecoversPlantedValuesThroughWrongRows) {
  const Planted planted(100, 0.01, 12);
  const std::vector<double> weights(100, 1.0);
  const RobustProblem problem = planted.problem();
  const RobustFit fit = fit_robust(problem, weights);
  EXPECT_NEAR(fit.x[0], planted.truth[0], 0.02);
  EXPECT_NEAR(fit.x[1], planted.truth[1], 0.04);
  EXPECT_LT(fit.evaluations, 100U * 60);
  // No point nearby is better.
  const std::vector<double> errors = standard_errors(problem, weights, fit);
  for (const double error : not_empty(errors)) {
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 0.1);
  }
}

TEST(RobustFit, ThePriorHoldsWhatNoRowSees) {
  Planted planted(50, 0.01);
  RobustProblem problem = planted.problem();
  problem.parameters.push_back({std::log(1.0), std::log(9.0), std::log(3.0), 0.2});
  problem.sees = [&](std::size_t i, std::size_t j) {
    return j == 0 || (j == 1 && planted.share[i] > 0);
  };
  const RobustFit fit = fit_robust(problem, std::vector<double>(50, 1.0));
  EXPECT_DOUBLE_EQ(fit.x[2], std::log(3.0));
  EXPECT_NEAR(standard_errors(problem, std::vector<double>(50, 1.0), fit)[2], 0.2, 1e-9);
  EXPECT_NEAR(fit.x[0], planted.truth[0], 0.02);
}

TEST(RobustFit, StaysWithinTheBounds) {
  const Planted planted(60, 0.01);
  RobustProblem problem = planted.problem();
  problem.parameters[0].upper = std::log(1.5);  // the truth is 2
  const RobustFit fit = fit_robust(problem, std::vector<double>(60, 1.0));
  EXPECT_DOUBLE_EQ(fit.x[0], std::log(1.5));
}

TEST(RobustFit, ARowWithoutWeightChangesNothing) {
  Planted planted(30, 0.02);
  std::vector<double> weights(30, 1.0);
  weights[7] = 0;
  const RobustFit before = fit_robust(planted.problem(), weights);
  planted.noise[7] = 5;
  const RobustFit after = fit_robust(planted.problem(), weights);
  EXPECT_EQ(before.x, after.x);
  // It is predicted all the same.
  EXPECT_DOUBLE_EQ(after.residuals[7], planted.problem().residual(7, after.x));
}

TEST(RobustFit, DoesNotDependOnTheNumberOfThreads) {
  const Planted planted(80, 0.02, 5);
  RobustProblem problem = planted.problem();
  const std::vector<double> weights(80, 1.0);
  const RobustFit one = fit_robust(problem, weights);
  problem.threads = 4;
  const RobustFit four = fit_robust(problem, weights);
  EXPECT_EQ(one.x, four.x);
  EXPECT_EQ(one.residuals, four.residuals);
}

}  // namespace
}  // namespace shardwright::sim
