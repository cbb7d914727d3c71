// SPDX-License-Identifier: Apache-2.0
// Errors as a mixture: most runs share an ordinary spread, some are off for reasons of their own.
//
// A quantile of few errors pays for its safety with width: near the level it rests on a handful of
// outliers, and each cell that is added or left out moves it. Two normal distributions around zero
// take their spreads, and the wider one its share, from all errors. The fit starts at the share
// that is known from elsewhere (of 40 pairs of identical configurations in two presets of one
// table 3 differ by 10 to 20 %).
//
// Runs of one cell share part of their error. With the correlation r of two errors of a cell
// (one-way random effects) a cell of n runs says as much as n / (1 + (n - 1) r) independent ones
// (Kish's design effect), and weighs as much.
#pragma once

#include <string>
#include <vector>

namespace shardwright::sim {

inline constexpr double kOutlierShare = 0.08;
/// Beyond which "outliers" would be a name for what is ordinary, or for nothing.
inline constexpr double kLeastOutliers = 0.02, kMostOutliers = 0.3;

/// A signed error (of a logarithm) and the cell that it belongs to.
struct CellError {
  std::string cell;
  double error = 0;
};

/// Variances of what runs of a cell share and of what is each run's own; shared errors are around
/// zero, so that a bias common to all cells counts as shared.
struct ErrorVariances {
  double between = 0, within = 0;
  double correlation() const { return between + within > 0 ? between / (between + within) : 0; }
};
ErrorVariances error_variances(const std::vector<CellError>& errors);

struct OutlierMixture {
  double ordinary = 0, outlying = 0;  // standard deviations
  double share = kOutlierShare;       // of outliers

  /// Share of errors within +- half_width.
  double covered(double half_width) const;
  /// Which of them covers `level`, in (0, 1).
  double half_width(double level) const;
};

/// Greatest likelihood (expectation and maximization, from the median). Zero of no errors, or where
/// all are. Deterministic.
OutlierMixture fit_mixture(const std::vector<CellError>& errors);

}  // namespace shardwright::sim
