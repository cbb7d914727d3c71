// SPDX-License-Identifier: Apache-2.0
// Prediction intervals from held-out errors, without assuming how the errors are distributed.
//
// Conformal prediction: if a new run's error is exchangeable with errors e_1 .. e_n, it is at most
// their ceil((n + 1) level)-th smallest with probability `level` or more, whatever the
// distribution. Runs of one cell (one source's runs of a model on a GPU) are not exchangeable with
// runs of others: they share their error. So a cell is drawn first and then a run of it, and what
// counts for the finite sample is the number of cells. Where the cells are many (kEnoughForSpreads)
// the width is that of an MoE model with outliers (outlier_mixture.h), whose spreads all errors
// tell; where they are few it is the conformal quantile, and beyond the largest error where even
// that needs more.
//
// How wide the interval has to be depends on how much is known of runs like the new one. Each
// degree of novelty takes the errors of runs that were as new to the constants that predicted them:
// a run left out of its cell, a cell left out of its source, a source left out. Widths never fall
// with novelty: where they would, those of more cells stand for both.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/uncertainty/outlier_mixture.h"

namespace shardwright::sim {

/// Half-width that covers an error of a new cell at `level`: the quantile of the mean of the cells'
/// distributions, with the new cell counted as one that lies beyond all others. Where the cells are
/// too few for the level, the largest error times `kBeyond` (0 of no errors).
double conformal_half_width(std::vector<CellError> errors, double level);
inline constexpr double kBeyond = 1.25;

/// The width of these errors by the rule above.
double width_by_cells(const std::vector<CellError>& errors, double level);
inline constexpr std::size_t kEnoughForSpreads = 20;  // cells

/// GPUs that share a chip, and so the constants of a chip, by the name that they are counted under.
/// Others are counted by themselves.
using Chips = std::map<std::string, std::string, std::less<>>;

/// Widths by novelty; sets nothing else of the result. Deterministic.
profiles::Uncertainty fit_uncertainty(const std::vector<profiles::HeldOutRun>& runs, double level,
                                      const Chips& chips = {});

/// The same of errors that are independent of each other: the finite-sample quantile of absolute
/// errors; none when they are too few for the level.
std::optional<double> conformal_half_width(std::vector<double> errors, double level);

/// Share of errors of new cells that a width fitted by this rule covers, by simulation: tables of
/// as many cells and runs as these, with normal errors shared by a cell, normal errors of each run
/// and outliers, of the sizes that these runs show. A check of the rule, not of the simulator.
double simulated_coverage(const std::vector<profiles::HeldOutRun>& runs, double level);

/// What is known of runs like one of this source (empty: a source of which nothing is known) on
/// this stack, GPU and model; see add_run in extrapolation.h for what is recorded.
profiles::Novelty novelty_of(const profiles::Uncertainty& uncertainty, std::string_view source,
                             std::string_view stack, std::string_view gpu, std::string_view model);

/// Half-width of the logarithm for runs of that novelty; 0 where nothing is known.
double half_width(const profiles::Uncertainty& uncertainty, profiles::Novelty novelty);

/// {time e^-h, time e^h}.
std::array<double, 2> interval_around(double time_s, double half_width);

}  // namespace shardwright::sim
