// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/group_problem.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <variant>

#include "profiles/fields.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::sim {

GroupProblem::GroupProblem(EditableProfile& profile, const std::vector<Adjustable>& values,
                           const std::vector<Target>& targets, const Sharing& sharing)
    : profile_(profile),
      values_(values),
      targets_(targets),
      sharing_(sharing),
      all_rows_(targets.size()),
      all_values_(values.size()) {
  for (const Adjustable& value : values) {
    numbers_.push_back(profile.find(value.path));
    base_.push_back(*numbers_.back());
  }
  std::iota(all_rows_.begin(), all_rows_.end(), std::size_t{0});
  std::iota(all_values_.begin(), all_values_.end(), std::size_t{0});
}

LadProblem GroupProblem::problem(const Indices& free, const Indices& rows) {
  LadProblem problem;
  for (const std::size_t j : free) {
    const Adjustable& value = values_[j];
    problem.parameters.push_back(
        {std::log(value.lower), std::log(value.upper), std::log(base_[j]), value.spread});
  }
  for (const std::size_t i : rows) problem.noise.push_back(targets_[i].noise);
  problem.residuals = [this, free, rows](const std::vector<double>& x) {
    return residuals(free, x, rows);
  };
  return problem;
}

std::vector<double> GroupProblem::start(const Indices& free) const {
  std::vector<double> x;
  for (const std::size_t j : free) x.push_back(std::log(base_[j]));
  return x;
}

void GroupProblem::apply(const Indices& free, const std::vector<double>& x) {
  for (std::size_t j = 0; j < numbers_.size(); ++j) *numbers_[j] = base_[j];
  for (std::size_t j = 0; j < free.size(); ++j) {
    const Adjustable& value = values_[free[j]];
    *numbers_[free[j]] = std::clamp(rounded(std::exp(x[j]), 7), value.lower, value.upper);
  }
}

std::vector<double> GroupProblem::residuals(const Indices& free, const std::vector<double>& x,
                                            const Indices& rows) {
  for (std::size_t j = 0; j < free.size(); ++j) *numbers_[free[j]] = std::exp(x[j]);
  std::vector<double> result = log_errors(profile_.profile(), targets_, sharing_, rows);
  for (const std::size_t j : free) *numbers_[j] = base_[j];
  return result;
}

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kWidest = 0.5;    // of what is believed beforehand, to count as determined
constexpr double kGoodPart = 0.3;  // of the largest part that a value has in a direction
constexpr double kRidge = 1e-12;   // keeps a matrix of no information regular

/// Of the values with a good part in `direction`, the one of the highest rank.
std::size_t who_yields(const VectorXd& direction, const Indices& free,
                       const std::vector<Adjustable>& values) {
  const double most = direction.cwiseAbs().maxCoeff();
  std::size_t yields = 0;
  int rank = -1;
  for (std::size_t j = 0; j < free.size(); ++j) {
    if (std::abs(direction[static_cast<Index>(j)]) < kGoodPart * most) continue;
    if (values[free[j]].rank > rank) {
      rank = values[free[j]].rank;
      yields = j;
    }
  }
  return yields;
}

}  // namespace

MatrixXd columns(const MatrixXd& matrix, const Indices& which) {
  MatrixXd result(matrix.rows(), static_cast<Index>(which.size()));
  for (std::size_t j = 0; j < which.size(); ++j) {
    result.col(static_cast<Index>(j)) = matrix.col(static_cast<Index>(which[j]));
  }
  return result;
}

void freeze_undetermined(const MatrixXd& slopes, const std::vector<Adjustable>& values,
                         Indices& free) {
  while (!free.empty()) {
    MatrixXd scaled = columns(slopes, free);
    for (std::size_t j = 0; j < free.size(); ++j) {
      scaled.col(static_cast<Index>(j)) *= values[free[j]].spread;
    }
    const Eigen::SelfAdjointEigenSolver<MatrixXd> eigen(scaled.transpose() * scaled);
    const bool too_many = free.size() > static_cast<std::size_t>(slopes.rows());
    if (!too_many && eigen.eigenvalues()[0] * kWidest * kWidest >= 1) return;
    free.erase(free.begin() +
               static_cast<std::ptrdiff_t>(who_yields(eigen.eigenvectors().col(0), free, values)));
  }
}

Indices uncertain(const Indices& free, const std::vector<bool>& seen,
                  const std::vector<Adjustable>& values) {
  Indices result;
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (seen[j] && !values[j].relative && std::find(free.begin(), free.end(), j) == free.end())
      result.push_back(j);
  }
  return result;
}

MatrixXd total_covariance(const MatrixXd& own, const VectorXd& scale, const MatrixXd& slopes,
                          const Indices& free, const Indices& frozen,
                          const std::vector<Adjustable>& values) {
  MatrixXd total = own;
  if (frozen.empty()) return total;
  const VectorXd weights = scale.cwiseInverse().cwiseAbs2();
  const MatrixXd of_free = columns(slopes, free);
  const MatrixXd of_frozen = columns(slopes, frozen);
  MatrixXd information = of_free.transpose() * weights.asDiagonal() * of_free;
  information.diagonal().array() += kRidge;
  const MatrixXd gain =
      information.ldlt().solve(of_free.transpose() * weights.asDiagonal() * of_frozen);
  VectorXd variances(static_cast<Index>(frozen.size()));
  for (std::size_t j = 0; j < frozen.size(); ++j) {
    variances[static_cast<Index>(j)] = values[frozen[j]].spread * values[frozen[j]].spread;
  }
  total += gain * variances.asDiagonal() * gain.transpose();
  return total;
}

std::optional<std::size_t> too_wide(const MatrixXd& covariance, const MatrixXd& own,
                                    const Indices& free, const std::vector<Adjustable>& values) {
  std::optional<std::size_t> worst;
  double most = kWidest;
  int rank = -1;
  for (std::size_t j = 0; j < free.size(); ++j) {
    const auto at = static_cast<Index>(j);
    const Adjustable& value = values[free[j]];
    const double variance = value.rank == 0 ? own(at, at) : covariance(at, at);
    const double share = std::sqrt(variance) / value.spread;
    if (!(share <= kWidest) && (values[free[j]].rank > rank || share > most)) {
      most = std::max(most, share);
      rank = value.rank;
      worst = j;
    }
  }
  return worst;
}

namespace {

constexpr double kDepends = 0.05;  // a derivative that a prediction rests on
constexpr std::size_t kFewTargets = 10;
constexpr std::uint32_t kFolds = 5;

/// By a hash of what was measured (FNV-1a, well mixed in the low bits), not of its order or time:
/// the same on every machine, and as it was when rows are added.
std::uint32_t fold_of_target(const Target& target, std::uint32_t folds) {
  const Work& w = target.row.operation.work;
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::int64_t number : {w.m, w.n, w.k, w.bytes, target.row.operation.ranks,
                                    static_cast<std::int64_t>(target.row.operation.op),
                                    static_cast<std::int64_t>(w.backward)}) {
    auto rest = static_cast<std::uint64_t>(number);
    for (int byte = 0; byte < 8; ++byte, rest >>= 8) {
      hash = (hash ^ (rest & 0xff)) * 1099511628211ULL;
    }
  }
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  hash ^= hash >> 33;
  return static_cast<std::uint32_t>(hash % folds);
}

/// Of the free values those that the rows of `training` determine by themselves.
Indices determined_by(const MatrixXd& standardized, const std::vector<Adjustable>& values,
                      const Indices& free, const Indices& training) {
  MatrixXd slopes(static_cast<Index>(training.size()), standardized.cols());
  for (std::size_t i = 0; i < training.size(); ++i) {
    slopes.row(static_cast<Index>(i)) = standardized.row(static_cast<Index>(training[i]));
  }
  Indices left = free;
  freeze_undetermined(slopes, values, left);
  return left;
}

bool rests_on_others(const MatrixXd& slopes, std::size_t row, const Indices& free,
                     const Indices& known) {
  return std::any_of(free.begin(), free.end(), [&](std::size_t j) {
    return std::abs(slopes(static_cast<Index>(row), static_cast<Index>(j))) >= kDepends &&
           std::find(known.begin(), known.end(), j) == known.end();
  });
}

}  // namespace

std::vector<double> held_out(GroupProblem& problem, const Indices& free, const LadFit& full,
                             const MatrixXd& slopes, const MatrixXd& standardized) {
  const std::vector<Target>& targets = problem.targets();
  const std::size_t n = targets.size();
  const bool singly = n <= kFewTargets;
  const auto folds = singly ? static_cast<std::uint32_t>(n) : kFolds;
  std::vector<double> result = full.residuals;
  for (std::uint32_t out = 0; out < folds; ++out) {
    Indices training, left;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t fold =
          singly ? static_cast<std::uint32_t>(i) : fold_of_target(targets[i], folds);
      (fold == out ? left : training).push_back(i);
    }
    if (left.empty()) continue;
    if (training.empty()) {
      std::fill(result.begin(), result.end(), std::nan(""));
      continue;
    }
    const LadFit fit = fit_lad(problem.problem(free, training), full.x);
    const Indices known = determined_by(standardized, problem.values(), free, training);
    const std::vector<double> residuals = problem.problem(free, left).residuals(fit.x);
    for (std::size_t i = 0; i < left.size(); ++i) {
      result[left[i]] = rests_on_others(slopes, left[i], free, known) ? std::nan("") : residuals[i];
    }
  }
  return result;
}

namespace {

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

/// Robust standard deviation of residuals that `parameters` values were fitted to: as many of the
/// smallest are left out, because a fit to absolute values passes through them.
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
