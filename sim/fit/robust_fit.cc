// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/robust_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>

#include "sim/core/base/check.h"
#include "sim/core/base/worker_pool.h"

namespace shardwright::sim {
namespace {

constexpr double kDifference = 0.02;    // of x, on both sides
constexpr double kFirstRadius = 0.2;    // how far one step may move a parameter
constexpr double kSmallestStep = 1e-5;  // steps below this move nothing
constexpr double kEnough = 5e-3;        // of the objective: a tenth of a standard error
constexpr int kMostFailures = 3;        // steps on end that do not help, each a fourth of the last
constexpr int kMostDescents = 40;
constexpr double kSlopesHold =
    0.05;  // within which a slope of the full fit serves one without a row

using Vector = std::vector<double>;

double phi(double r) {
  return rounded_abs(r, kResolved);
}

double objective(const RobustProblem& problem, const Vector& weights, const Vector& residuals,
                 const Vector& x) {
  double sum = 0;
  for (std::size_t i = 0; i < problem.rows; ++i) sum += weights[i] * phi(residuals[i]);
  return sum / kResidualScale + prior_pull(problem.parameters, x);
}

class Search {
 public:
  Search(const RobustProblem& problem, const Vector& weights, RobustFit start)
      : problem_(problem), weights_(weights), fit_(std::move(start)) {
    fit_.objective = objective(problem_, weights_, fit_.residuals, fit_.x);
  }

  RobustFit run() {
    linearize();
    return descend(0);
  }

  /// As run(), by the slopes that are there as long as x stays near where they were taken: then
  /// nothing is predicted, and residuals stay what they were.
  RobustFit run_again() {
    const Linear to = solve(kFirstRadius);
    if (distance(to.x, fit_.jacobian_at) > kSlopesHold) return descend(kSlopesHold);
    fit_.x = to.x;
    fit_.objective = to.objective;
    return std::move(fit_);
  }

 private:
  RobustFit descend(double slopes_hold) {
    double radius = kFirstRadius;
    int failures = 0;
    for (int step = 0; step < kMostDescents; ++step) {
      const Linear to = solve(radius);
      if (fit_.objective - to.objective >= kEnough && failures < kMostFailures) {
        if (take(to.x)) {
          failures = 0;
        } else {
          radius = distance(to.x, fit_.x) / 4;
          ++failures;
        }
        continue;
      }
      // Nothing to gain by these slopes; others may show more.
      if (distance(fit_.x, fit_.jacobian_at) <= slopes_hold) break;
      linearize();
      failures = 0;
      radius = kFirstRadius;
    }
    return std::move(fit_);
  }

  struct Linear {
    Vector x;
    double objective;  // as the linearized residuals have it
  };

  static double distance(const Vector& a, const Vector& b) {
    double most = 0;
    for (std::size_t j = 0; j < a.size(); ++j) most = std::max(most, std::abs(a[j] - b[j]));
    return most;
  }

  std::size_t parameters() const { return problem_.parameters.size(); }

  void linearize() {
    const std::size_t n = parameters();
    fit_.jacobian.assign(problem_.rows * n, 0.0);
    fit_.jacobian_at = fit_.x;
    std::atomic<std::size_t> evaluations = 0;
    for_each_index(problem_.rows, problem_.threads, [&](std::size_t i) {
      if (weights_[i] == 0) return;
      for (std::size_t j = 0; j < n; ++j) {
        if (!problem_.sees(i, j)) continue;
        Vector x = fit_.x;
        x[j] += kDifference;
        const double above = problem_.residual(i, x);
        x[j] -= 2 * kDifference;
        fit_.jacobian[i * n + j] = (above - problem_.residual(i, x)) / (2 * kDifference);
        evaluations += 2;
      }
    });
    fit_.evaluations += evaluations;
  }

  /// The minimum of the linearized objective within `radius` and the bounds. phi is replaced by the
  /// parabola that touches it from above at the present residual, which never overshoots.
  Linear solve(double radius) const {
    const std::size_t n = parameters();
    Vector x = fit_.x;
    Vector r = fit_.residuals;
    for (int sweep = 0; sweep < 500; ++sweep) {
      double moved = 0;
      for (std::size_t j = 0; j < n; ++j) {
        const auto& p = problem_.parameters[j];
        double slope = (x[j] - p.centre) / (p.spread * p.spread);
        double curvature = p.precision();
        for (std::size_t i = 0; i < problem_.rows; ++i) {
          const double derivative = fit_.jacobian[i * n + j];
          if (derivative == 0 || weights_[i] == 0) continue;
          const double stiffness = weights_[i] * derivative / (kResidualScale * phi(r[i]));
          slope += stiffness * r[i];
          curvature += stiffness * derivative;
        }
        const double low = std::max(p.lower, fit_.x[j] - radius);
        const double high = std::min(p.upper, fit_.x[j] + radius);
        const double to = std::clamp(x[j] - slope / curvature, low, high);
        const double change = to - x[j];
        if (change == 0) continue;
        for (std::size_t i = 0; i < problem_.rows; ++i) r[i] += fit_.jacobian[i * n + j] * change;
        x[j] = to;
        moved = std::max(moved, std::abs(change));
      }
      if (moved < kSmallestStep / 100) break;
    }
    // What does not move need not be predicted again.
    for (std::size_t j = 0; j < n; ++j) {
      if (std::abs(x[j] - fit_.x[j]) < kSmallestStep) x[j] = fit_.x[j];
    }
    return {x, objective(problem_, weights_, r, x)};
  }

  bool take(const Vector& to) {
    Vector residuals = fit_.residuals;
    std::atomic<std::size_t> evaluations = 0;
    for_each_index(problem_.rows, problem_.threads, [&](std::size_t i) {
      if (weights_[i] == 0) return;
      for (std::size_t j = 0; j < parameters(); ++j) {
        if (to[j] == fit_.x[j] || !problem_.sees(i, j)) continue;
        residuals[i] = problem_.residual(i, to);
        ++evaluations;
        return;
      }
    });
    fit_.evaluations += evaluations;
    const double value = objective(problem_, weights_, residuals, to);
    if (!(value < fit_.objective)) return false;
    fit_.x = to;
    fit_.residuals = std::move(residuals);
    fit_.objective = value;
    return true;
  }

  const RobustProblem& problem_;
  const Vector& weights_;
  RobustFit fit_;
};

void predict_all(const RobustProblem& problem, RobustFit& fit) {
  fit.residuals.resize(problem.rows);
  for_each_index(problem.rows, problem.threads,
                 [&](std::size_t i) { fit.residuals[i] = problem.residual(i, fit.x); });
  fit.evaluations += problem.rows;
}

/// Rows without weight were not followed on the way.
void predict_weightless(const RobustProblem& problem, const Vector& weights, RobustFit& fit) {
  for_each_index(problem.rows, problem.threads, [&](std::size_t i) {
    if (weights[i] == 0) fit.residuals[i] = problem.residual(i, fit.x);
  });
}

void check(const RobustProblem& problem, const Vector& weights) {
  SHARDWRIGHT_CHECK(weights.size() == problem.rows, "{} weights for {} rows", weights.size(),
                    problem.rows);
  for (const auto& p : problem.parameters) {
    SHARDWRIGHT_CHECK(p.lower <= p.centre && p.centre <= p.upper && p.spread > 0,
                      "bounds {} to {} around {}", p.lower, p.upper, p.centre);
  }
}

}  // namespace

RobustFit fit_robust(const RobustProblem& problem, const std::vector<double>& weights) {
  check(problem, weights);
  RobustFit start;
  for (const auto& p : problem.parameters) start.x.push_back(p.centre);
  predict_all(problem, start);
  RobustFit fit = Search(problem, weights, std::move(start)).run();
  predict_weightless(problem, weights, fit);
  return fit;
}

RobustFit refit_robust(const RobustProblem& problem, const std::vector<double>& weights,
                       const RobustFit& full) {
  check(problem, weights);
  RobustFit start = full;
  start.evaluations = 0;
  RobustFit fit = Search(problem, weights, std::move(start)).run_again();
  predict_weightless(problem, weights, fit);
  return fit;
}

std::vector<double> standard_errors(const RobustProblem& problem,
                                    const std::vector<double>& weights, const RobustFit& fit) {
  const auto n = static_cast<Eigen::Index>(problem.parameters.size());
  Eigen::MatrixXd information = Eigen::MatrixXd::Zero(n, n);
  double scale = 0, rows = 0;
  for (std::size_t i = 0; i < problem.rows; ++i) {
    scale += weights[i] * std::abs(fit.residuals[i]);
    rows += weights[i];
  }
  scale = rows > 0 ? std::max(scale / rows, kResolved) : kResidualScale;
  for (Eigen::Index a = 0; a < n; ++a) {
    const auto& p = problem.parameters[static_cast<std::size_t>(a)];
    information(a, a) += p.precision();
    for (Eigen::Index b = 0; b < n; ++b) {
      for (std::size_t i = 0; i < problem.rows; ++i) {
        const double* slopes = &fit.jacobian[i * static_cast<std::size_t>(n)];
        information(a, b) += weights[i] * slopes[a] * slopes[b] / (scale * scale);
      }
    }
  }
  const Eigen::MatrixXd covariance = information.ldlt().solve(Eigen::MatrixXd::Identity(n, n));
  std::vector<double> errors;
  for (Eigen::Index a = 0; a < n; ++a) errors.push_back(std::sqrt(covariance(a, a)));
  return errors;
}

}  // namespace shardwright::sim
