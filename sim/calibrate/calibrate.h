// SPDX-License-Identifier: Apache-2.0
// From what was measured to a profile that predicts it: every group fitted in turn, measured
// products kept as they are, and the record of it all.
//
// Read rows.h (many timings become one row), fit_group.h (what is fitted and what stays),
// next_measurement.h (what would help most) and drift.h (whether a profile still holds) for the
// parts.
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/cluster_file.h"
#include "profiles/profile.h"
#include "sim/calibrate/fit_group.h"

namespace shardwright::sim {

struct CalibrateOptions {
  double level = 0.9;  // of the half widths that prediction intervals stand on
};

struct CalibrationResult {
  std::vector<GroupFit> groups;  // those with measurements
  profiles::Profile profile;     // calibrated, with its half widths
  std::vector<profiles::MeasuredProduct> products;
  std::vector<profiles::MeasuredRow> rows;  // that were used
  std::vector<profiles::LeftOut> left_out;  // rows that the base cannot predict at all
  Sharing sharing;                          // what collectives take from kernels
};

/// Fits `base` to `rows` (rows_of, merged). Deterministic.
CalibrationResult calibrate(const profiles::Profile& base,
                            const std::vector<profiles::MeasuredRow>& rows,
                            const CalibrateOptions& options = {});

/// The record for the file; the caller adds date, parent and sources.
profiles::Calibration record_of(const CalibrationResult& result, const std::string& stack,
                                double level);

/// The values that moved, as entries of a cluster file's "set". `from` names what they come from:
/// "2 traces".
std::vector<profiles::SetEntry> set_of(const CalibrationResult& result, const std::string& from,
                                       const std::string& date);

}  // namespace shardwright::sim
