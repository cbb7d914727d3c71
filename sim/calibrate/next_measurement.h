// SPDX-License-Identifier: Apache-2.0
// Which one further measurement would narrow the prediction most.
//
// Every value that measurements can move has a uncertainty: what is believed beforehand, narrowed
// by the rows (the covariance of fit_group.h). How much a step's time depends on each value is
// found by moving it a little; together they give the variance of the predicted time. A candidate
// measurement depends on the same values: having it would reduce that variance by
//     (g' C j)^2 / (s^2 + j' C j)
// with g the slopes of the step, j those of the candidate, C the covariance, s the noise of one
// measurement (Chaloner and Verdinelli 1995, Bayesian c-optimal design). The largest wins.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "sim/calibrate/calibrate.h"

namespace shardwright::sim {

struct NextMeasurement {
  profiles::CostGroup group = profiles::CostGroup::kProducts;
  std::string what;        // "time all_gather of 67.1 MB on 8 ranks"
  double before = 0;       // standard deviation of the logarithm of the predicted time
  double after = 0;        // with the measurement
  double group_share = 0;  // of the variance, before
};

/// Predicted seconds of what the user asks about.
using TimeOf = std::function<double(const profiles::Profile&)>;

/// What the measured operations take in all: for users who name no plan.
TimeOf time_of_rows(const std::vector<profiles::MeasuredRow>& rows, const Sharing& sharing);

/// Nothing is left to gain when `before` is 0.
NextMeasurement next_measurement(const CalibrationResult& result, const TimeOf& time);

}  // namespace shardwright::sim
