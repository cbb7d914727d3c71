// SPDX-License-Identifier: Apache-2.0
// How much is known of runs like one, and the interval around a predicted time.
//
// Widths are found from held-out errors by conformal prediction (profiles/research/conformal.py)
// and recorded in profiles/data/fitted.
#pragma once

#include <array>
#include <string_view>

#include "profiles/uncertainty/uncertainty.h"

namespace shardwright::sim {

/// What is known of runs like one of this source (empty: a source of which nothing is known) on
/// this stack, GPU and model; see add_run in extrapolation.h for what is recorded.
profiles::Novelty novelty_of(const profiles::Uncertainty& uncertainty, std::string_view source,
                             std::string_view stack, std::string_view gpu, std::string_view model);

/// {time e^-h, time e^h}.
std::array<double, 2> interval_around(double time_s, double half_width);

}  // namespace shardwright::sim
