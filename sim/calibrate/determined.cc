// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/determined.h"

#include <algorithm>
#include <cmath>

namespace shardwright::sim {
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

}  // namespace shardwright::sim
