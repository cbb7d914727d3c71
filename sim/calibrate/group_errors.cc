// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/group_errors.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "sim/calibrate/lad.h"
#include "sim/core/base/quantile.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

constexpr int kDraws = 400;
constexpr std::size_t kFewest = 2;
constexpr double kBelievedMiss = 0.05;  // of an operation that nothing can be held against
constexpr double kLeastHalfWidth = 0.005;

profiles::ErrorSummary summary(const std::vector<double>& log_errors) {
  std::vector<double> errors;
  for (const double error : log_errors) {
    if (std::isfinite(error)) errors.push_back(std::abs(std::expm1(error)));
  }
  return summarize_errors(errors);
}

double half_width_of_total(const std::vector<Target>& targets, const std::vector<double>& held_out,
                           double level) {
  const std::size_t n = targets.size();
  if (n < kFewest) return 0;
  std::vector<double> measured, predicted;
  std::mt19937 random(20261121);
  std::normal_distribution<double> believed(0, kBelievedMiss);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& row = targets[i].row;
    const double error = std::isfinite(held_out[i]) ? held_out[i] : believed(random);
    measured.push_back(row.operation.seconds * static_cast<double>(row.count));
    predicted.push_back(measured.back() * std::exp(error));
  }
  std::vector<double> errors;
  for (int draw = 0; draw < kDraws; ++draw) {
    double is = 0, was = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t drawn = random() % n;
      is += predicted[drawn];
      was += measured[drawn];
    }
    errors.push_back(std::abs(std::log(is / was)));
  }
  const auto at = errors.begin() + static_cast<std::ptrdiff_t>(std::ceil(level * kDraws)) - 1;
  std::nth_element(errors.begin(), at, errors.end());
  const double few = student_975(static_cast<double>(n) + 1) / student_975(1e6);
  return std::clamp(*at * few, kLeastHalfWidth, profiles::kWidestCalibration);
}

}  // namespace

profiles::ErrorQuantiles quantiles_of(const std::vector<double>& values) {
  profiles::ErrorQuantiles result{};
  constexpr std::array<double, 5> kShares = {0.05, 0.25, 0.5, 0.75, 0.95};
  for (std::size_t q = 0; q < kShares.size(); ++q) result[q] = quantile(values, kShares[q]);
  return result;
}

void fill_errors(const std::vector<Target>& targets, const std::vector<double>& before,
                 const std::vector<double>& in_sample, const std::vector<double>& held_out,
                 double level, profiles::CalibratedGroup& errors) {
  errors.rows = static_cast<std::int64_t>(targets.size());
  for (const Target& target : targets) errors.observations += target.row.count;
  errors.before = summary(before);
  errors.in_sample = summary(in_sample);
  if (level <= 0) return;
  errors.held_out = summary(held_out);
  std::vector<double> measured_over_predicted;
  for (const double error : held_out) {
    if (std::isfinite(error)) measured_over_predicted.push_back(-error);
  }
  errors.quantiles = quantiles_of(measured_over_predicted);
  errors.half_width = half_width_of_total(targets, held_out, level);
}

}  // namespace shardwright::sim
