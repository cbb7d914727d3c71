// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/group_held_out.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/calibrate/determined.h"

namespace shardwright::sim {
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
