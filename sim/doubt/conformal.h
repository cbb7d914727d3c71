// SPDX-License-Identifier: Apache-2.0
// Prediction intervals for iteration times, from how far held-out predictions were off.
//
// Conformal: the half-width is a finite-sample quantile of |log(predicted / measured)| over
// published runs, each predicted by constants fitted without it, so that of n runs and a new one
// like them at least `level` fall inside. "Like them" is the same stack in the same regime, bound
// by compute or by communication; where too few such runs exist for the level, the width is that of
// the stack, of the regime, or of all runs, but never less than the group's own worst. A stack, or
// a stack on a GPU, without any run takes the errors of runs whose whole source was left out, every
// source counting alike: a new source is the nearest thing to a new stack or machine. What sets a
// new run apart beyond that is named by sim/doubt/extrapolation.h, not covered.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "profiles/uncertainty.h"

namespace shardwright::sim {

/// The least h with |error| <= h for a new error with probability `level`: the ceil((n+1) level)-th
/// smallest of n. None when n is too small for that. `errors` are absolute.
std::optional<double> conformal_half_width(std::vector<double> errors, double level);

/// Groups and the width elsewhere; sets nothing else of the result. Deterministic.
profiles::Uncertainty fit_uncertainty(const std::vector<profiles::HeldOutRun>& runs, double level,
                                      double regime_boundary);

profiles::Regime regime_of(const profiles::Uncertainty& uncertainty, double exposed_share);

/// Half-width of the logarithm for a stack on a GPU; `seen_on_gpu` says whether such a run exists.
double half_width(const profiles::Uncertainty& uncertainty, std::string_view stack,
                  bool seen_on_gpu, double exposed_share);

/// {time e^-h, time e^h}.
std::array<double, 2> interval_around(double time_s, double half_width);

}  // namespace shardwright::sim
