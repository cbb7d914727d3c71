// SPDX-License-Identifier: Apache-2.0
// How far a group's predictions are off: condensed errors, quantiles, and the half width that its
// part of a step's time stays within.
//
// A step spends its products' time in several shapes, whose errors partly cancel; so the half width
// is that of the group's total. It is the bootstrap's: rows are drawn with replacement, the
// measured total is held against the total predicted by fits without those rows, and of the drawn
// errors the quantile at the level is taken, widened for few rows as Student's t is. An operation
// that alone determines a value cannot be held out; it is believed to be 5 % off.
#pragma once

#include <vector>

#include "profiles/calibration.h"
#include "sim/calibrate/fit_group.h"

namespace shardwright::sim {

/// Errors are log(predicted / measured) by target, NaN where none is known. Level 0: no half width.
void fill_errors(const std::vector<Target>& targets, const std::vector<double>& before,
                 const std::vector<double>& in_sample, const std::vector<double>& held_out,
                 double level, profiles::CalibratedGroup& errors);

/// 5, 25, 50, 75 and 95 %, interpolated; all 0 of nothing.
profiles::ErrorQuantiles quantiles_of(const std::vector<double>& values);

}  // namespace shardwright::sim
