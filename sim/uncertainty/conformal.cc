// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/conformal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>

#include "sim/core/base/portable_math.h"
#include "sim/uncertainty/extrapolation.h"

namespace shardwright::sim {
namespace {

using profiles::HeldOutRun;
using profiles::Novelty;
using profiles::NoveltyWidth;
using profiles::Uncertainty;

constexpr std::size_t kEnoughCells = 3;

using Held = double HeldOutRun::*;

/// Errors of the runs that `belongs`.
template <typename Belongs>
std::vector<CellError> errors_of(const std::vector<HeldOutRun>& runs, Held held,
                                 const Belongs& belongs) {
  std::vector<CellError> errors;
  for (const HeldOutRun& run : runs) {
    if (belongs(run)) errors.push_back({run.cell(), run.*held});
  }
  return errors;
}

NoveltyWidth width_of(Novelty novelty, std::string words, const std::vector<CellError>& errors,
                      double level) {
  std::set<std::string> cells;
  for (const CellError& error : errors) cells.insert(error.cell);
  return {novelty, std::move(words), static_cast<std::int64_t>(errors.size()),
          static_cast<std::int64_t>(cells.size()), width_by_cells(errors, level)};
}

/// Where a width would fall with novelty, the errors of more cells speak for both: a quantile of
/// few cells is wide for being of few, which says nothing about less known runs.
void never_fall(std::vector<NoveltyWidth>& widths) {
  for (std::size_t i = 1; i < widths.size(); ++i) {
    NoveltyWidth& newer = widths[i];
    const NoveltyWidth& known = widths[i - 1];
    if (newer.half_width >= known.half_width) continue;
    if (newer.cells < known.cells) newer.half_width = known.half_width;
    for (std::size_t j = 0; j < i; ++j)
      widths[j].half_width = std::min(widths[j].half_width, newer.half_width);
  }
}

}  // namespace

double conformal_half_width(std::vector<CellError> errors, double level) {
  if (errors.empty()) return 0;
  std::map<std::string, double> runs_of;
  for (CellError& error : errors) {
    runs_of[error.cell] += 1;
    error.error = std::abs(error.error);
  }
  const auto cells = static_cast<double>(runs_of.size());
  std::sort(errors.begin(), errors.end(),
            [](const CellError& a, const CellError& b) { return a.error < b.error; });
  double share = 0;
  for (const CellError& error : errors) {
    share += 1 / (runs_of[error.cell] * (cells + 1));
    // Sums of reciprocals may miss the level by their last digit.
    if (share >= level - 1e-9) return error.error;
  }
  return kBeyond * errors.back().error;
}

double width_by_cells(const std::vector<CellError>& errors, double level) {
  std::set<std::string> cells;
  for (const CellError& error : errors) cells.insert(error.cell);
  return cells.size() < kEnoughForSpreads ? conformal_half_width(errors, level)
                                          : fit_mixture(errors).half_width(level);
}

std::optional<double> conformal_half_width(std::vector<double> errors, double level) {
  const auto n = static_cast<double>(errors.size());
  // (n + 1) level may be a whole number that rounding lifts.
  const double rank = std::ceil((n + 1) * level - 1e-9);
  if (rank > n || rank < 1) return std::nullopt;
  const auto at = errors.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(errors.begin(), at, errors.end());
  return *at;
}

Uncertainty fit_uncertainty(const std::vector<HeldOutRun>& runs, double level, const Chips& chips) {
  Uncertainty result;
  result.level = level;
  if (runs.empty()) return result;
  std::map<std::string, std::size_t> runs_of_cell;
  std::map<std::string, std::set<std::string>> cells_of_pair;
  std::set<std::string> sources;
  const auto pair_of = [](const HeldOutRun& run) { return run.stack + " on " + run.gpu; };
  for (const HeldOutRun& run : runs) {
    ++runs_of_cell[run.cell()];
    cells_of_pair[pair_of(run)].insert(run.cell());
    sources.insert(run.source);
  }
  const auto add = [&](Novelty novelty, std::string words, const std::vector<CellError>& errors) {
    result.widths.push_back(width_of(novelty, std::move(words), errors, level));
  };
  add(Novelty::kCell, "the run left out, its cell known",
      errors_of(runs, &HeldOutRun::log_error,
                [&](const HeldOutRun& run) { return runs_of_cell[run.cell()] > 1; }));
  add(Novelty::kStackOnGpu, "the cell left out, three others with its stack on its GPU known",
      errors_of(runs, &HeldOutRun::log_error_cell_out, [&](const HeldOutRun& run) {
        return cells_of_pair[pair_of(run)].size() > kEnoughCells;
      }));
  add(Novelty::kSourceOnly, "the source left out",
      errors_of(runs, &HeldOutRun::log_error_source_out, [](const HeldOutRun&) { return true; }));
  // Of a chip that nobody else ran nothing but the priors is left with its source.
  const auto counted_as = [&](const HeldOutRun& run) {
    const auto at = chips.find(run.gpu);
    return at == chips.end() ? run.gpu : at->second;
  };
  std::map<std::string, std::set<std::string>> sources_of_chip;
  for (const HeldOutRun& run : runs) sources_of_chip[counted_as(run)].insert(run.source);
  add(Novelty::kNothing, "the source left out, the only one of its chip",
      errors_of(runs, &HeldOutRun::log_error_source_out, [&](const HeldOutRun& run) {
        return sources_of_chip[counted_as(run)].size() == 1;
      }));
  never_fall(result.widths);
  return result;
}

double simulated_coverage(const std::vector<HeldOutRun>& runs, double level) {
  constexpr int kTables = 400;
  constexpr int kNewCells = 20;
  constexpr double kOutlierSpread = 0.15;
  std::map<std::string, std::size_t> runs_of_cell;
  std::vector<CellError> errors;
  for (const HeldOutRun& run : runs) {
    ++runs_of_cell[run.cell()];
    errors.push_back({run.cell(), run.log_error_source_out});
  }
  if (errors.empty()) return 0;
  const ErrorVariances variances = error_variances(errors);
  std::mt19937 random(2026);
  std::normal_distribution<double> of_cell(0, std::sqrt(variances.between)),
      of_run(0, std::sqrt(variances.within)), of_outlier(0, kOutlierSpread);
  std::bernoulli_distribution outlies(kOutlierShare);
  const auto draw = [&](double shared) {
    return shared + of_run(random) + (outlies(random) ? of_outlier(random) : 0);
  };
  int inside = 0;
  for (int table = 0; table < kTables; ++table) {
    std::vector<CellError> drawn;
    for (const auto& [cell, count] : runs_of_cell) {
      const double shared = of_cell(random);
      for (std::size_t i = 0; i < count; ++i) drawn.push_back({cell, draw(shared)});
    }
    const double width = width_by_cells(drawn, level);
    for (int i = 0; i < kNewCells; ++i) inside += std::abs(draw(of_cell(random))) <= width;
  }
  return static_cast<double>(inside) / (kTables * kNewCells);
}

Novelty novelty_of(const Uncertainty& uncertainty, std::string_view source, std::string_view stack,
                   std::string_view gpu, std::string_view model) {
  if (has_seen_cell(uncertainty, source, stack, gpu, model)) return Novelty::kCell;
  if (has_seen_often(uncertainty, stack, gpu)) return Novelty::kStackOnGpu;
  return has_seen_source(uncertainty, source) || has_seen_gpu(uncertainty, gpu)
             ? Novelty::kSourceOnly
             : Novelty::kNothing;
}

double half_width(const Uncertainty& uncertainty, Novelty novelty) {
  return uncertainty.known() ? uncertainty.widths[static_cast<std::size_t>(novelty)].half_width : 0;
}

std::array<double, 2> interval_around(double time_s, double half_width) {
  return {time_s * portable_exp(-half_width), time_s * portable_exp(half_width)};
}

}  // namespace shardwright::sim
