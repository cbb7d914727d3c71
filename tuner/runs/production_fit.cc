// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/production_fit.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "sim/core/base/error.h"
#include "sim/core/base/quantile.h"

namespace shardwright::tuner {
namespace {

using profiles::FittedWholeRun;
using profiles::Production;
using Runs = std::vector<FittedWholeRun>;

constexpr std::size_t kLeastFamilies = 3;
constexpr double kLeastSpread = 1e-3;  // of what a slope is fitted to

double log_ratio(const FittedWholeRun& run) {
  return std::log(run.published_gpu_hours / run.ideal_gpu_hours);
}

double small_of(const FittedWholeRun& run) {
  return profiles::small_in_large(run.parameters, run.ideal_gpu_hours);
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

struct FittedLine {
  double constant = 0, slope = 0;

  double rest(const FittedWholeRun& run) const {
    return log_ratio(run) - constant - slope * small_of(run);
  }
};

/// Weighted least squares; the constant alone where the trainings do not tell a slope.
FittedLine fitted_line(const Runs& runs) {
  std::map<std::string, double> count;
  for (const FittedWholeRun& run : runs) ++count[run.family];
  double weights = 0, x = 0, y = 0;
  const auto weight_of = [&](const FittedWholeRun& run) {
    return 1 / std::sqrt(count[run.family]);
  };
  for (const FittedWholeRun& run : runs) {
    const double weight = weight_of(run);
    weights += weight;
    x += weight * small_of(run);
    y += weight * log_ratio(run);
  }
  x /= weights;
  y /= weights;
  double xx = 0, xy = 0;
  for (const FittedWholeRun& run : runs) {
    const double off = small_of(run) - x;
    xx += weight_of(run) * off * off;
    xy += weight_of(run) * off * (log_ratio(run) - y);
  }
  FittedLine line;
  if (xx > kLeastSpread * weights) line.slope = xy / xx;
  line.constant = y - line.slope * x;
  return line;
}

/// Rests of every run of `runs`, by a line fitted without its family.
std::vector<double> rests_family_out(const Runs& runs) {
  std::vector<double> rests;
  for (const std::string& family : families_of(runs)) {
    const FittedLine line = fitted_line(without(runs, family));
    for (const FittedWholeRun& run : runs) {
      if (run.family == family) rests.push_back(line.rest(run));
    }
  }
  return rests;
}

struct FittedWidth {
  double level = 0;
  std::array<double, 2> half_widths{};  // below, above

  double ratio() const { return std::exp(half_widths[0] + half_widths[1]); }
  bool holds(double rest) const { return rest >= -half_widths[0] && rest <= half_widths[1]; }
};

/// The shortest interval that holds ceil(level (n + 1)) of the rests; none where that is more than
/// there are.
std::optional<FittedWidth> shortest(std::vector<double> rests, double level) {
  const auto kept =
      static_cast<std::size_t>(std::ceil(level * static_cast<double>(rests.size() + 1) - 1e-9));
  if (kept > rests.size()) return std::nullopt;
  std::sort(rests.begin(), rests.end());
  std::optional<FittedWidth> best;
  for (std::size_t first = 0; first + kept <= rests.size(); ++first) {
    const FittedWidth width{level,
                            {std::max(0.0, -rests[first]), std::max(0.0, rests[first + kept - 1])}};
    if (!best || width.ratio() < best->ratio()) best = width;
  }
  return best;
}

/// At the highest level whose interval is narrow enough to be of use, else at the lowest.
FittedWidth width_of(const std::vector<double>& rests) {
  constexpr int kLowest = 80, kHighest = 95;
  const auto [least, most] = std::minmax_element(rests.begin(), rests.end());
  FittedWidth result{kLowest / 100.0, {std::max(0.0, -*least), std::max(0.0, *most)}};
  for (int percent = kHighest; percent >= kLowest; --percent) {
    const std::optional<FittedWidth> width = shortest(rests, percent / 100.0);
    if (!width) continue;
    result = *width;
    if (width->ratio() <= kWidestInterval) break;
  }
  return result;
}

class Counted {
 public:
  void add(double rest, const FittedWidth& width) {
    coverage_.inside += width.holds(rest);
    off_.push_back(std::abs(rest));
  }
  profiles::Coverage coverage() {
    coverage_.n = static_cast<std::int64_t>(off_.size());
    coverage_.median_ratio = std::exp(quantile(off_, 0.5));
    return coverage_;
  }

 private:
  profiles::Coverage coverage_;
  std::vector<double> off_;
};

profiles::Coverage coverage_family_out(const Runs& runs) {
  Counted counted;
  for (const std::string& family : families_of(runs)) {
    const Runs rest = without(runs, family);
    const FittedLine line = fitted_line(rest);
    const FittedWidth width = width_of(rests_family_out(rest));
    for (const FittedWholeRun& run : runs) {
      if (run.family == family) counted.add(line.rest(run), width);
    }
  }
  return counted.coverage();
}

}  // namespace

void fit_production(Production& production) {
  const Runs& runs = production.runs;
  if (families_of(runs).size() < kLeastFamilies) {
    throw Error(fmt::format("the whole runs are of {} families, expected at least {}",
                            families_of(runs).size(), kLeastFamilies));
  }
  const FittedLine line = fitted_line(runs);
  production.log_factor = line.constant;
  production.small_model = line.slope;
  const FittedWidth width = width_of(rests_family_out(runs));
  production.level = width.level;
  production.half_widths = width.half_widths;
  std::vector<double> steps;
  Counted in_sample;
  production.parameters_range = {runs.front().parameters, runs.front().parameters};
  production.peak_range = {runs.front().peak_flops, runs.front().peak_flops};
  const auto widen = [](std::array<double, 2>& range, double value) {
    range = {std::min(range[0], value), std::max(range[1], value)};
  };
  for (const FittedWholeRun& run : runs) {
    if (run.step_half_width > 0) steps.push_back(run.step_half_width);
    in_sample.add(line.rest(run), width);
    widen(production.parameters_range, run.parameters);
    widen(production.peak_range, run.peak_flops);
  }
  production.step_half_width = quantile(steps, 0.5);
  production.in_sample = in_sample.coverage();
  production.family_out = coverage_family_out(runs);
}

double analytic_mfu_of(std::vector<double> steady_mfu) {
  return quantile(std::move(steady_mfu), 0.5);
}

}  // namespace shardwright::tuner
