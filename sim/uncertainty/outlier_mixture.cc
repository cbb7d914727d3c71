// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/outlier_mixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "sim/core/base/quantile.h"

namespace shardwright::sim {
namespace {

constexpr double kMedianOfNormal = 0.6745;
/// Where the outliers' spread starts, over the ordinary one.
constexpr double kWider = 3;
constexpr int kMostRounds = 500;
constexpr double kSettled = 1e-7;

std::vector<double> weights_of(const std::vector<CellError>& errors) {
  const double correlation = error_variances(errors).correlation();
  std::map<std::string, double> runs_of;
  for (const CellError& error : errors) runs_of[error.cell] += 1;
  std::vector<double> weights;
  for (const CellError& error : errors) {
    weights.push_back(1 / (1 + (runs_of[error.cell] - 1) * correlation));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// Up to a factor that all spreads share.
double density(double error, double spread) {
  return std::exp(-0.5 * error * error / (spread * spread)) / spread;
}

}  // namespace

ErrorVariances error_variances(const std::vector<CellError>& errors) {
  struct Cell {
    double n = 0, sum = 0, squares = 0;
  };
  std::map<std::string, Cell> cells;
  for (const CellError& error : errors) {
    Cell& cell = cells[error.cell];
    cell.n += 1;
    cell.sum += error.error;
    cell.squares += error.error * error.error;
  }
  const auto count = static_cast<double>(cells.size());
  const double spare = static_cast<double>(errors.size()) - count;
  double own = 0, means = 0, reciprocals = 0;
  for (const auto& [name, cell] : cells) {
    const double mean = cell.sum / cell.n;
    own += cell.squares - cell.n * mean * mean;
    means += mean * mean / count;
    reciprocals += 1 / cell.n / count;
  }
  ErrorVariances result;
  if (spare > 0) result.within = std::max(0.0, own / spare);
  if (count > 0) result.between = std::max(0.0, means - result.within * reciprocals);
  return result;
}

double OutlierMixture::covered(double half_width) const {
  const auto within = [&](double spread) {
    return spread > 0 ? std::erf(half_width / spread / std::sqrt(2.0)) : 1.0;
  };
  return (1 - share) * within(ordinary) + share * within(outlying);
}

double OutlierMixture::half_width(double level) const {
  double low = 0, high = 10 * std::max(ordinary, outlying);
  for (int round = 0; round < 60; ++round) {
    const double middle = (low + high) / 2;
    (covered(middle) < level ? low : high) = middle;
  }
  return high;
}

OutlierMixture fit_mixture(const std::vector<CellError>& errors) {
  OutlierMixture fit;
  if (errors.empty()) return fit;
  const std::vector<double> weights = weights_of(errors);
  std::vector<double> sizes;
  for (const CellError& error : errors) sizes.push_back(std::abs(error.error));
  const double largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest == 0) return fit;
  // No spread below a thousandth of the largest error: a single point would have any likelihood.
  const double least = largest / 1000;
  fit.ordinary = std::max(least, quantile(sizes, 0.5) / kMedianOfNormal);
  fit.outlying = kWider * fit.ordinary;
  for (int round = 0; round < kMostRounds; ++round) {
    double outliers = 0, ordinary_squares = 0, outlying_squares = 0;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const double outlies = fit.share * density(sizes[i], fit.outlying);
      const double share = outlies / (outlies + (1 - fit.share) * density(sizes[i], fit.ordinary));
      outliers += weights[i] * share;
      outlying_squares += weights[i] * share * sizes[i] * sizes[i];
      ordinary_squares += weights[i] * (1 - share) * sizes[i] * sizes[i];
    }
    const OutlierMixture before = fit;
    fit.ordinary = std::max(least, std::sqrt(ordinary_squares / std::max(1e-12, 1 - outliers)));
    fit.outlying = std::max(fit.ordinary, std::sqrt(outlying_squares / std::max(1e-12, outliers)));
    fit.share = std::clamp(outliers, kLeastOutliers, kMostOutliers);
    if (std::abs(fit.ordinary - before.ordinary) < kSettled * largest &&
        std::abs(fit.outlying - before.outlying) < kSettled * largest) {
      break;
    }
  }
  return fit;
}

}  // namespace shardwright::sim
