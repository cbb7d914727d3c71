// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/group_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

using Eigen::Index;
using Eigen::MatrixXd;

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

}  // namespace shardwright::sim
