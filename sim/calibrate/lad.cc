// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/lad.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>

namespace shardwright::sim {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kSmooth = 0.5;
constexpr double kLeastScale = 0.003;  // formulas are not better than that
constexpr double kFirstScale = 0.03;
/// What formulas miss before residuals say how much, and how many residuals that counts as.
constexpr double kBelievedResidual = 0.05;
constexpr double kBelievedCount = 1;
/// Variance of the estimate over that of least squares, of normal residuals of deviation 1.
constexpr double kNormalKappa = 1.35;
constexpr Index kFewResiduals = 3;  // beyond the parameters
constexpr double kDerivativeStep = 0.01;
constexpr double kStill = 1e-6;
constexpr int kMostSteps = 60;
constexpr int kRounds = 3;

double rounded_abs(double z) {
  return std::sqrt(z * z + kSmooth * kSmooth);
}

std::vector<double> plain(const VectorXd& x) {
  return {x.begin(), x.end()};
}
VectorXd vector(const std::vector<double>& x) {
  return Eigen::Map<const VectorXd>(x.data(), static_cast<Index>(x.size()));
}
VectorXd residuals_at(const LadProblem& problem, const VectorXd& x) {
  return vector(problem.residuals(plain(x)));
}
MatrixXd slopes_at(const LadProblem& problem, const VectorXd& x) {
  const std::vector<double> columns = jacobian_of(problem, plain(x));
  return Eigen::Map<const MatrixXd>(columns.data(), static_cast<Index>(problem.noise.size()),
                                    x.size());
}

/// A fit on its way.
struct State {
  VectorXd x, residuals, scale, noise;
  MatrixXd jacobian, covariance;
  double objective = 0;
};

double objective(const LadProblem& problem, const VectorXd& scale, const VectorXd& residuals,
                 const VectorXd& x) {
  double sum = 0;
  for (Index i = 0; i < residuals.size(); ++i) {
    sum += rounded_abs(residuals[i] / scale[i]);
  }
  for (Index j = 0; j < x.size(); ++j) {
    const LadParameter& p = problem.parameters[static_cast<std::size_t>(j)];
    const double away = (x[j] - p.centre) / p.spread;
    sum += 0.5 * away * away;
  }
  return std::isfinite(sum) ? sum : 1e300;
}

VectorXd clamped(const LadProblem& problem, VectorXd x) {
  for (Index j = 0; j < x.size(); ++j) {
    x[j] = problem.parameters[static_cast<std::size_t>(j)].clamped(x[j]);
  }
  return x;
}

/// Minimizes with the scales as they are.
void minimize(const LadProblem& problem, State& fit) {
  const Index n = fit.x.size();
  fit.residuals = residuals_at(problem, fit.x);
  fit.objective = objective(problem, fit.scale, fit.residuals, fit.x);
  double damping = 1e-3;
  bool stale = true;
  MatrixXd hessian;
  VectorXd gradient;
  for (int step = 0; step < kMostSteps && n > 0; ++step) {
    if (stale) {
      fit.jacobian = slopes_at(problem, fit.x);
      VectorXd weights(fit.residuals.size());
      for (Index i = 0; i < weights.size(); ++i) {
        const double root = rounded_abs(fit.residuals[i] / fit.scale[i]);
        weights[i] = 1 / (fit.scale[i] * fit.scale[i] * root);
      }
      hessian = fit.jacobian.transpose() * weights.asDiagonal() * fit.jacobian;
      gradient = fit.jacobian.transpose() * weights.cwiseProduct(fit.residuals);
      for (Index j = 0; j < n; ++j) {
        const LadParameter& p = problem.parameters[static_cast<std::size_t>(j)];
        hessian(j, j) += p.precision();
        gradient[j] += p.slope(fit.x[j]);
      }
    }
    MatrixXd damped = hessian;
    damped.diagonal() *= 1 + damping;
    const VectorXd to = clamped(problem, fit.x - damped.ldlt().solve(gradient));
    const double moved = (to - fit.x).cwiseAbs().maxCoeff();
    if (!(moved > kStill)) break;
    const VectorXd residuals = residuals_at(problem, to);
    const double value = objective(problem, fit.scale, residuals, to);
    stale = value < fit.objective;
    if (!stale) {
      damping *= 8;
      if (damping > 1e6) break;
      continue;
    }
    const double gained = fit.objective - value;
    fit.x = to;
    fit.residuals = residuals;
    fit.objective = value;
    damping = std::max(damping / 5, 1e-6);
    if (gained < 1e-7 * (1 + value)) break;
  }
}

/// What the model misses beyond the rows' own noise; every row is given it.
void rescale(State& fit) {
  const Index rows = fit.residuals.size();
  if (rows == 0) return;
  std::vector<double> residuals(fit.residuals.begin(), fit.residuals.end());
  const auto beyond = static_cast<double>(std::max<Index>(0, rows - fit.x.size()));
  const double seen =
      robust_deviation(std::move(residuals), static_cast<std::size_t>(fit.x.size()));
  const double total =
      std::sqrt((beyond * seen * seen + kBelievedCount * kBelievedResidual * kBelievedResidual) /
                (beyond + kBelievedCount));
  double own = 0;
  for (Index i = 0; i < rows; ++i) own += fit.noise[i] * fit.noise[i];
  own /= static_cast<double>(rows);
  const double missed = std::max(total * total - own, kLeastScale * kLeastScale);
  for (Index i = 0; i < rows; ++i) {
    fit.scale[i] = std::sqrt(fit.noise[i] * fit.noise[i] + missed);
  }
  if (rows - fit.x.size() < kFewResiduals) return;
  // In all they must match what is seen, also where the own noise was overstated.
  std::vector<double> standardized;
  for (Index i = 0; i < rows; ++i) standardized.push_back(fit.residuals[i] / fit.scale[i]);
  const double factor =
      robust_deviation(std::move(standardized), static_cast<std::size_t>(fit.x.size()));
  fit.scale = (fit.scale * factor).cwiseMax(kLeastScale);
}

void fill_covariance(State& fit) {
  const Index n = fit.x.size();
  const Index rows = fit.residuals.size();
  fit.covariance = MatrixXd::Zero(n, n);
  if (n == 0 || rows == 0) return;
  double square = 0, slope = 0;
  MatrixXd information = MatrixXd::Zero(n, n);
  for (Index i = 0; i < rows; ++i) {
    const double z = fit.residuals[i] / fit.scale[i];
    const double root = rounded_abs(z);
    square += z * z / (root * root);
    slope += kSmooth * kSmooth / (root * root * root);
    const VectorXd row = fit.jacobian.row(i).transpose() / fit.scale[i];
    information += row * row.transpose();
  }
  const auto count = static_cast<double>(rows);
  square /= count;
  slope /= count;
  // Huber's correction for the number of parameters, on top of n - p.
  const auto p = static_cast<double>(n);
  const double correction = 1 + p / count * (1 - slope * kSmooth) / std::max(slope * kSmooth, 0.1);
  const double kappa = rows - n < kFewResiduals ? kNormalKappa
                                                : correction * correction * square /
                                                      (slope * slope) * count / (count - p);
  information.diagonal().array() += 1e-12;
  fit.covariance = kappa * information.ldlt().solve(MatrixXd::Identity(n, n));
}

}  // namespace

std::vector<double> jacobian_of(const LadProblem& problem, const std::vector<double>& x) {
  const std::size_t rows = problem.noise.size();
  std::vector<double> result(rows * x.size(), 0.0);
  for (std::size_t j = 0; j < x.size(); ++j) {
    const auto& p = problem.parameters[j];
    std::vector<double> above = x, below = x;
    above[j] = std::min(x[j] + kDerivativeStep, p.upper);
    below[j] = std::max(x[j] - kDerivativeStep, p.lower);
    const double width = above[j] - below[j];
    if (!(width > 0)) continue;
    const std::vector<double> high = problem.residuals(above);
    const std::vector<double> low = problem.residuals(below);
    for (std::size_t i = 0; i < rows; ++i) result[j * rows + i] = (high[i] - low[i]) / width;
  }
  return result;
}

LadFit fit_lad(const LadProblem& problem, const std::vector<double>& start) {
  State fit;
  fit.x = clamped(problem, vector(start));
  fit.noise = vector(problem.noise);
  fit.scale = (fit.noise.array().square() + kFirstScale * kFirstScale).sqrt();
  for (int round = 0; round < kRounds; ++round) {
    minimize(problem, fit);
    rescale(fit);
  }
  fit.jacobian = slopes_at(problem, fit.x);
  fill_covariance(fit);
  return {plain(fit.x),
          plain(fit.residuals),
          plain(fit.scale),
          {fit.covariance.data(), fit.covariance.data() + fit.covariance.size()}};
}

double robust_deviation(std::vector<double> residuals, std::size_t parameters) {
  if (residuals.empty()) return 0;
  for (double& r : residuals) r = std::abs(r);
  std::sort(residuals.begin(), residuals.end());
  // Of n - p values the median stands after the p that the fit passes through.
  const std::size_t skipped = std::min(parameters, residuals.size() - 1);
  const double left = static_cast<double>(residuals.size() - skipped - 1);
  const double at = static_cast<double>(skipped) + left / 2;
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, residuals.size() - 1);
  const double median = residuals[low] + (at - std::floor(at)) * (residuals[high] - residuals[low]);
  return 1.4826 * median;
}

double student_975(double degrees_of_freedom) {
  static constexpr std::array<double, 4> kFew = {12.706, 4.303, 3.182, 2.776};
  if (degrees_of_freedom < 1) return kFew[0];
  if (degrees_of_freedom < 5) return kFew[static_cast<std::size_t>(degrees_of_freedom) - 1];
  // Cornish and Fisher's expansion.
  constexpr double z = 1.959964;
  const double v = degrees_of_freedom;
  return z + (z * z * z + z) / (4 * v) +
         (5 * std::pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * v * v);
}

}  // namespace shardwright::sim
