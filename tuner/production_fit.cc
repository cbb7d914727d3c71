// SPDX-License-Identifier: Apache-2.0
#include "tuner/production_fit.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "sim/core/error.h"
#include "sim/core/quantile.h"
#include "sim/doubt/conformal.h"

namespace shardwright::tuner {
namespace {

using profiles::FittedWholeRun;
using profiles::Production;
using Runs = std::vector<FittedWholeRun>;

constexpr std::size_t kLeastFamilies = 3;

double log_ratio(const FittedWholeRun& run) {
  return std::log(run.published_gpu_hours / run.ideal_gpu_hours);
}

std::set<std::string> families_of(const Runs& runs) {
  std::set<std::string> families;
  for (const FittedWholeRun& run : runs) families.insert(run.family);
  return families;
}

Runs without(const Runs& runs, const std::string& family) {
  Runs rest;
  for (const FittedWholeRun& run : runs) {
    if (run.family != family) rest.push_back(run);
  }
  return rest;
}

double fitted_log_factor(const Runs& runs) {
  std::map<std::string, double> count;
  for (const FittedWholeRun& run : runs) ++count[run.family];
  double sum = 0, weights = 0;
  for (const FittedWholeRun& run : runs) {
    const double weight = 1 / std::sqrt(count[run.family]);
    sum += weight * log_ratio(run);
    weights += weight;
  }
  return sum / weights;
}

/// |rest| of every run of `runs`, by a factor fitted without its family.
std::vector<double> rests_family_out(const Runs& runs) {
  std::vector<double> rests;
  for (const std::string& family : families_of(runs)) {
    const double factor = fitted_log_factor(without(runs, family));
    for (const FittedWholeRun& run : runs) {
      if (run.family == family) rests.push_back(std::abs(log_ratio(run) - factor));
    }
  }
  return rests;
}

struct Width {
  double level = 0, half_width = 0;
};

/// At the highest level whose interval is narrow enough to be of use, else at the lowest.
Width width_of(const std::vector<double>& rests) {
  constexpr int kLowest = 80, kHighest = 95;
  Width result{kLowest / 100.0, *std::max_element(rests.begin(), rests.end())};
  for (int percent = kHighest; percent >= kLowest; --percent) {
    const double level = percent / 100.0;
    const std::optional<double> width = sim::conformal_half_width(rests, level);
    if (!width) continue;
    result = {level, *width};
    if (std::exp(2 * *width) <= kWidestInterval) break;
  }
  return result;
}

profiles::Coverage coverage_of(const std::vector<double>& rests,
                               const std::vector<double>& half_widths) {
  profiles::Coverage coverage;
  coverage.n = static_cast<std::int64_t>(rests.size());
  for (std::size_t i = 0; i < rests.size(); ++i) coverage.inside += rests[i] <= half_widths[i];
  coverage.median_ratio = std::exp(quantile(rests, 0.5));
  return coverage;
}

profiles::Coverage coverage_family_out(const Runs& runs) {
  std::vector<double> rests, widths;
  for (const std::string& family : families_of(runs)) {
    const Runs rest = without(runs, family);
    const double factor = fitted_log_factor(rest);
    const double width = width_of(rests_family_out(rest)).half_width;
    for (const FittedWholeRun& run : runs) {
      if (run.family != family) continue;
      rests.push_back(std::abs(log_ratio(run) - factor));
      widths.push_back(width);
    }
  }
  return coverage_of(rests, widths);
}

}  // namespace

void fit_production(Production& production) {
  const Runs& runs = production.runs;
  if (families_of(runs).size() < kLeastFamilies) {
    throw Error(fmt::format("the whole runs are of {} families, expected at least {}",
                            families_of(runs).size(), kLeastFamilies));
  }
  production.log_factor = fitted_log_factor(runs);
  const Width width = width_of(rests_family_out(runs));
  production.level = width.level;
  production.half_width = width.half_width;
  std::vector<double> steps, rests;
  production.parameters_range = {runs.front().parameters, runs.front().parameters};
  production.peak_range = {runs.front().peak_flops, runs.front().peak_flops};
  const auto widen = [](std::array<double, 2>& range, double value) {
    range = {std::min(range[0], value), std::max(range[1], value)};
  };
  for (const FittedWholeRun& run : runs) {
    if (run.step_half_width > 0) steps.push_back(run.step_half_width);
    rests.push_back(std::abs(log_ratio(run) - production.log_factor));
    widen(production.parameters_range, run.parameters);
    widen(production.peak_range, run.peak_flops);
  }
  production.step_half_width = quantile(steps, 0.5);
  production.in_sample =
      coverage_of(rests, std::vector<double>(rests.size(), production.half_width));
  production.family_out = coverage_family_out(runs);
}

double analytic_mfu_of(std::vector<double> steady_mfu) {
  return quantile(std::move(steady_mfu), 0.5);
}

}  // namespace shardwright::tuner
