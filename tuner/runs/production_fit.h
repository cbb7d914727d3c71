// SPDX-License-Identifier: Apache-2.0
// Fits the production factor (profiles/uncertainty/production.h) to published trainings.
//
// log(published / ideal) = log_factor + small_model x (small model in a large job) + rest, by least
// squares over trainings, of which a family of n, who share a team and a code base, weighs sqrt(n).
// The interval is the shortest that holds, of the rests of trainings whose whole family was left
// out, ceil(level (n + 1)), at the highest level in whole percent, from 80 to 95, at which its ends
// differ by a factor of at most 3: wider would tell a buyer nothing. How often that holds is found
// by leaving out each family once more, line, level and width anew.
#pragma once

#include <vector>

#include "profiles/uncertainty/production.h"

namespace shardwright::tuner {

inline constexpr double kWidestInterval = 3;  // upper over lower end

/// Sets level, log_factor, small_model, half_widths, step_half_width, ranges, in_sample and
/// family_out of `production` from its runs. Throws Error when there are fewer than three families.
void fit_production(profiles::Production& production);

/// Median of the published steady shares of the peak; 0 of nothing.
double analytic_mfu_of(std::vector<double> steady_mfu);

}  // namespace shardwright::tuner
